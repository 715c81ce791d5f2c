"""GPUs, each vendor's library read in a child process that can be killed (decision 0020). This file imports nothing."""
