"""Trials in the workers of Ray Tune. The only room that imports ray."""
