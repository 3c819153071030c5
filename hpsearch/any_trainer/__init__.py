"""Trainers of other libraries: `tune`, and the parts that make them resumable. Knows no engine."""
