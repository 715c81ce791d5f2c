"""Plans of capacity (pure)."""
