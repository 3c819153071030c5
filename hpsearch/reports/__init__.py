"""What a search looks like to a person: the live view and the tables. Reads studies, changes nothing."""
