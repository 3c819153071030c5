"""A Gaussian process over learning curves: expected improvement and cost of parameters. Knows numbers only."""
