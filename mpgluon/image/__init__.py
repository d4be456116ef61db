"""Images: files to arrays, and what is done to them before they become batches."""
