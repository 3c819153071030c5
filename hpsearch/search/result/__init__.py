"""What a search returns: the best run, tables, advice."""
