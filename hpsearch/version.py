"""The version of hpsearch."""

__version__ = "0.8.0"
