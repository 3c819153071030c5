"""Ray Tune: the same search on a cluster. Workers import from here too, so nothing heavy is loaded with it."""
