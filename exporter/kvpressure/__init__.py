"""kvpressure: reports why a replica loses throughput, from its own page and its GPUs."""

__version__ = "0.1.0"
