"""The trials in Optuna: storages, samplers, pruners. Decides nothing; knows no process and no trainer."""
