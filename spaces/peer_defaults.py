"""The default space of `hyperparameter_search` in transformers, to compare with it.

What a search of transformers' `Trainer`, and of ours, tries if it is given no space. For comparisons; for a result take
the space of your task: its learning rates end at 1e-4, and it searches the seed, of which the best one means nothing.

`model_init` reads nothing: all of it are training arguments.
"""

from hpsearch.search.space.search_space import default_space

# All four ranges: `default_hp_space_optuna` of transformers (transformers/trainer_utils.py). It recommends no values.
SPACE = default_space()
