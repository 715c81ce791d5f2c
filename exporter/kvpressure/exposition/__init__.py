"""PURE: derived values to pages. `families` has one row per metric family."""
