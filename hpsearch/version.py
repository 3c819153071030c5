"""The version of hpsearch."""

__version__ = "0.6.0"
