"""Programs that search for defects, to be run by hand; tests run each for a few seconds."""
