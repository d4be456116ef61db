"""Helpers that tests share: devices, processes, networks, comparisons."""
