"""The domain in frozen dataclasses: what the planner, the builders and the loop talk about. No I/O, no Kubernetes."""
