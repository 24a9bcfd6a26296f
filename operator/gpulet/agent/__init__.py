"""The node's part: DRA kubelet plugin and MPS runner."""
