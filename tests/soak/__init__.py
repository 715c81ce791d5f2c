"""What only time shows: leaks, lost polls, verdicts that go wrong once in an hour (`make soak`)."""
