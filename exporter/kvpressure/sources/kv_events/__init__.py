"""KV events of engines: blocks stored and removed, read from the ZeroMQ socket that the engine publishes them on."""

from kvpressure.sources.kv_events.source import SOURCE

__all__ = ["SOURCE"]
