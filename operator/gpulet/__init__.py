"""Gpulet: a Kubernetes operator that shares GPUs spatially."""

__version__ = "0.1.0"
