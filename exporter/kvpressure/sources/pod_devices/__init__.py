"""Which container holds which GPU, asked of the kubelet; gRPC and protobuf are imported at the first question."""
