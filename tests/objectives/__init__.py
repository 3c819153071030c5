"""The ready-made objectives."""
