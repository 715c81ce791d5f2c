"""The container image, built by buildah and run as the chart runs it: see docs/internals/e2e-image.md."""
