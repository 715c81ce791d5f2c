"""HTTP: whoever asks, in a thread of its own, so that nothing they do makes a poll late."""
