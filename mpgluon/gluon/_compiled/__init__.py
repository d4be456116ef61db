"""Calls of hybridized blocks: traces, signatures, programs, and the state they need."""
