"""Pipelines: a block's calls in micro-batches, queued in the order of a schedule."""
