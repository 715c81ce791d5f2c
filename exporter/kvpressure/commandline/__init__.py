"""PURE: what a command line, a shell script or an environment says, for no particular program."""
