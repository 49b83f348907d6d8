"""Start of every Python process with this folder on PYTHONPATH."""
