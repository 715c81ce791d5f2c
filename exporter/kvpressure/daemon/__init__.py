"""What runs: pollers and node sources feed the engines' state, the exporter makes snapshots of it."""
