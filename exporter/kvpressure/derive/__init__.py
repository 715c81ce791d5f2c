"""PURE: windows to derived values, one file per family."""
