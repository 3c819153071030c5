"""A search from its arguments to a best run, whatever makes the trainers; replay; stored studies. Knows no engine."""
