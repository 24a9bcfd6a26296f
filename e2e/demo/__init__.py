"""The demo: a cluster, Gpulet, models under load, a tuning job, and a table of what happened."""
