"""The chart and the exporter against a real kube-apiserver with etcd: see docs/internals/e2e-kubernetes.md."""
