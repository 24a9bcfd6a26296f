"""Model programs for Triton's Python backend: copied into the repository, run inside Triton's own processes."""
