"""Tells whether a container is an engine's server, whose, and on which port it serves its API and `/metrics`."""

from __future__ import annotations

from kvpressure.limits.start import Start
from kvpressure.runtimes.registry import RUNTIMES
from kvpressure.runtimes.runtime import Runtime


def runtime_of(image: str, start: Start) -> Runtime | None:
    """Return the runtime that this container serves, by its command or its image's entrypoint; None for any other.

    Workers of a multi-node engine are none: they serve no page. Never raises.
    """
    if start.seen:
        serving = (s for s in start.servers if s.runtime.starting.serves(s.module, s.options, image))
        return next((server.runtime for server in serving), None)
    options = [server.options for server in start.servers]
    return next((one for one in RUNTIMES if one.starting.image_serves(image, start.command, start.args, options)), None)


def serving_port(start: Start) -> int | None:
    """Return the port of the servers' own arguments; None where they give none or several, or may give another."""
    ports = {one.runtime.starting.port(one.module, one.options) for one in start.servers if not one.is_worker}
    return ports.pop() if len(ports) == 1 and not start.cut else None
