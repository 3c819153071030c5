"""Runnable studies, each small enough to read; `python -m studies.<name>`."""
