"""Sample inputs of every op, one file per family."""
