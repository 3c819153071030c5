"""One search: spaces, objectives, trials, selection, retention. Imports no torch, no optuna, no ray."""
