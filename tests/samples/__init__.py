"""Sample inputs of every op, one file a family."""
