"""Ways to run the trials of a search: in this process, in workers, on Ray. They know no pruner, budget or storage."""
