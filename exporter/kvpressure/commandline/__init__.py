"""PURE: reads command lines, shell scripts and environments, of no particular program."""
