"""The only importer of prometheus_client: what Gpulet exports, and reading what Triton exports."""
