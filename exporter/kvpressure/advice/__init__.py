"""What to do about a diagnosis, and what it would change. Empty: limits are needed at every tick, advice is not."""
