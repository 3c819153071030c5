"""The embedded backend: Optuna's samplers, pruners and storages, in this process."""
