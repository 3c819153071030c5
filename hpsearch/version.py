"""The version of hpsearch."""

__version__ = "0.7.0"
