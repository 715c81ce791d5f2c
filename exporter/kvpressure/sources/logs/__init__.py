"""Engines' logs: lines of containers, files and the journal, counted by kind."""
