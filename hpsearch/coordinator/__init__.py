"""One search in progress: running trials, retries, budgets, failures. Must not know how trials are run, nor Optuna."""
