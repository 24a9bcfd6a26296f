"""Manifests from domain objects. Pure: dicts in, dicts out."""
