"""Engines' pages, from targets to samples: requests, parsing, and recordings of pages."""
