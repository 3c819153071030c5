"""The names of the scopes, as Ray Tune spells them; what they mean is decided in `search/metrics/selection.py`."""

SCOPES = ("last", "all", "avg", "last-5-avg", "last-10-avg")
