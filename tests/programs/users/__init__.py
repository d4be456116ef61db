"""Programs as a new user writes them from the docs."""
