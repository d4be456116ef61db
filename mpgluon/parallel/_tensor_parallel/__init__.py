"""Layers whose parameters, heads or positions are divided over devices."""
