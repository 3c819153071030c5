"""The version of hpsearch."""

__version__ = "1.0.0"
