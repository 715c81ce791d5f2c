"""The text format of Prometheus to series and values, with bounds on bytes, lines and labels; of no particular page."""
