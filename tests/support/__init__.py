"""What the tests share: models, data, recorders, fixtures."""
