"""Metrics for the `evaluate` library, loaded by the path of their file; no download."""
