"""The search space: parameters, where trials start, what was tried, mistakes in a space. It trains nothing."""
