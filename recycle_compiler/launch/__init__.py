"""Files that start a job on a cluster: a batch script for Slurm, a manifest for Kubernetes."""
