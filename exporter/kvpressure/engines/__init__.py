"""Engines' pages, from the list of targets to samples: whom to ask, the asking, the reading, and recordings of it."""
