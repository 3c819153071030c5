"""Processes that train trials on this machine: each one is started once, for many trials."""
