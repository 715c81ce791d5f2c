"""What a fleet of engines costs a Prometheus: series, bytes, rules."""
