"""Trials in the workers of Ray Tune. Only this room, and the backend that makes it, import ray."""
