"""The version of hpsearch."""

__version__ = "0.3.0"
