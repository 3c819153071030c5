"""`tune`: trainers of other libraries, and functions that train by themselves. Knows no engine."""
