"""Benchmarks: both sides in one process run, medians and ratios; `python -m studies.benchmarks.<name>`."""
