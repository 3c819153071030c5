"""The search space: parameters, where trials start, what was tried, what is wrong before the first trial. Trains nothing."""
