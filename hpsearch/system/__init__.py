"""Files, locks, signals, processes, logs. Knows no training and no search."""
