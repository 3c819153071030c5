"""The version of hpsearch."""

__version__ = "0.5.0"
