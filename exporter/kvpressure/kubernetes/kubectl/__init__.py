"""What commands at the prompt ask of a cluster, through the user's own `kubectl`; the daemon imports none of it."""
