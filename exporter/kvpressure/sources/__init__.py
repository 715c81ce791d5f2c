"""I/O only: each source turns one part of the world into samples."""
