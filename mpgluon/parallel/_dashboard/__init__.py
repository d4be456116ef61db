"""`dashboard`, a live view of devices."""
