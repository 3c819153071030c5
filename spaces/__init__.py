"""Ready-made search spaces, one file for each kind of task; every range names the source it has been taken from.

A study takes one as it is, or changes it: docs/spaces.md shows how. In every space `default` is a known configuration,
for ``start_with="defaults"``, and `prior`, if there is one, is where the sources have found the best.
"""
