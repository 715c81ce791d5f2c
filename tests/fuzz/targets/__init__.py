"""One fuzz target a file; see `tests.fuzz.target`."""
