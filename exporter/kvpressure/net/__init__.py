"""What every source stands on: the guard it runs in, time, HTTP with its deadlines, names, credentials."""
