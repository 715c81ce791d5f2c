"""The container image, built by buildah and run as the chart runs it: see docs/e2e-image.md."""
