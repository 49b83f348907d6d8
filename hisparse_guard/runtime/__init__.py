"""What runs inside someone's server: the standard library and wrapt, nothing else."""
