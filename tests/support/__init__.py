"""Helpers shared by tests: devices, processes, networks and comparisons."""
