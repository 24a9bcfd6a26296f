"""The only importer of NVML, and the only speaker of the MPS control protocol."""
