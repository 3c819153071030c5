"""What was found in a search, one finding a file, as sentences. They know records, not where a study is stored."""
