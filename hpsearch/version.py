"""The version of hpsearch."""

__version__ = "0.4.0"
