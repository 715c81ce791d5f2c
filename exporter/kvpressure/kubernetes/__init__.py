"""Everything that is said to a Kubernetes API server.

One client for all, a kubeconfig read as kubectl reads it, what objects tell (`objects`, pure), what the exporter
watches on its node (`watch`), and what a command at a prompt needs beside: pods by name, port-forwards, recent logs.
"""
