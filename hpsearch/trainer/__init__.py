"""The Trainer: what users make, call and override."""
