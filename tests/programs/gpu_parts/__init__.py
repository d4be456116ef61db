"""What tests/programs/gpu_check.py is made of."""
