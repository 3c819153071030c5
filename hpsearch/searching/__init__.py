"""What searches of all trainers share: from settings to a best run, replay, studies on disk. Knows no engine."""
