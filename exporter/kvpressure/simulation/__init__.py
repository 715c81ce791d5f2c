"""PURE: what a change would do, by simulating the engine with and without it."""
