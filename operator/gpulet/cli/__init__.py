"""The command gpulet."""
