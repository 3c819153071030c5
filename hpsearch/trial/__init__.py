"""One trial while it runs: preflight, training, reports, selected weights. Knows no engine and no other trial."""
