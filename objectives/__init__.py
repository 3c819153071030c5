"""Ready-made objectives, for ``compute_objective=``, one file for each kind.

Functions of the metrics of an evaluation, or functions that make one. What they compute is in their names, by which a
study on disk knows its objective: made with other weights or prices, an objective is another one. A metric alone needs
none of them: its name is an objective.
"""
