"""Trainers of other libraries: `tune`, and what makes them resumable. Knows no engine."""
