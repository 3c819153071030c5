"""The views of a search: the live view, the tables and the report. They read studies and change nothing."""
