"""Assertions about a cluster with Gpulet, for the tests of the demo and of single parts."""
