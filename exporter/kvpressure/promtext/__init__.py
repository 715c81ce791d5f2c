"""Parses pages in Prometheus' text format to series and values, with bounds on bytes, lines and labels."""
