"""What a command at a prompt needs of a cluster: the user's kubeconfig, pods by name, port-forwards, recent logs.

The exporter itself does not use it: it watches its own node through `sources/kubernetes`.
"""
