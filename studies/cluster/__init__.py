"""A search on a Ray cluster, and the job files that start it; docs/cluster.md explains them."""
