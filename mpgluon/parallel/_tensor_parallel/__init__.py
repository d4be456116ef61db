"""Layers whose parameters, attention heads or sequence positions are split over devices."""
