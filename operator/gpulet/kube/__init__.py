"""The only importer of the Kubernetes client: verbs on dicts, informers, the Lease."""
