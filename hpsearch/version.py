"""The version of hpsearch."""

__version__ = "0.9.0.dev0"
