"""The running exporter: pollers and node sources feed the engines' state, of which it makes snapshots."""
