"""Weights in the layout of Hugging Face. The public names are in `mx.contrib.huggingface`."""
