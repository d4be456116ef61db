"""Pipeline parallelism: divides calls of a block into micro-batches, which run in the order of a
schedule."""
