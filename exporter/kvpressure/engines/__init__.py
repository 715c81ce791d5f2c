"""Engines' pages, from the list of targets to samples: the requests, the reading, and recordings of it."""
