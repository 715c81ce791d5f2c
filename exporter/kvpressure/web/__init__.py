"""The HTTP server, in a thread of its own, so that no client delays a poll."""
