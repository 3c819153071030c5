"""What a search does next: rungs, promotions, budgets of training runs. Pure: no clock, no disk, no random number."""
