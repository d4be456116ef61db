"""Pipelines: calls of a block are divided into micro-batches, which are queued by a schedule."""
