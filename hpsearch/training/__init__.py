"""One training run: the loop and everything that lives and dies with it. Knows no trial, no search, no engine."""
