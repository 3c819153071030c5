"""What a search optimises: objectives, constraints, and the report and trial that they select. Knows no parameter."""
