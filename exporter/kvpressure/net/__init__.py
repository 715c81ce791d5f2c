"""What all sources use: the guard they run in, clocks, HTTP with deadlines, name lookups, credentials."""
