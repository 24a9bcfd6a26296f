"""A real Kubernetes cluster on one machine, without Docker and without a registry.

Run as ``python -m e2e.cluster``; see docs/contributing/local-cluster.md.
"""
