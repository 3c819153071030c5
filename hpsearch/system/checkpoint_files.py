"""The names of files in a checkpoint that are read both where trials are trained and where studies are read."""

STATE_FILE = "trainer_state.json"
TRIAL_FILE = "hpsearch_trial.json"  # beside checkpoints of transformers' trainer, and of plain functions
