"""Programs as new users write them from the docs."""
