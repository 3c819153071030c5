"""The study's folder: records, sessions, versions of code and data."""
