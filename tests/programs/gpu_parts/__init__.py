"""Parts of tests/programs/gpu_check.py."""
