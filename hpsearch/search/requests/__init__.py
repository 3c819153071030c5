"""Requests of the user to a search that is running, or that will continue: stop this trial, try these parameters."""
