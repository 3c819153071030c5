"""One search in progress: running trials, retries, limits, failures. Must not know executors and user options."""
