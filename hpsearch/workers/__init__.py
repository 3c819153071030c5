"""Processes that train trials on this machine: each one started once, for many trials."""
