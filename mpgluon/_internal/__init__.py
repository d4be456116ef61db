"""Modules that several packages of mpgluon share. Programs do not import them."""
