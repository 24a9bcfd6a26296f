"""The four kinds of group ``gpulet.dev`` as pydantic models, and the words that every part of Gpulet shares.

What is written here is what users and GitOps pipelines see: changes within v1alpha1 are additive.
"""
