"""Programs that look for defects, for people to run; tests run each for a few seconds."""
