"""The version of hpsearch."""

__version__ = "0.2.0"
