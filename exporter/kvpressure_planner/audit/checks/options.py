"""Check of the options themselves: whether the server's version has them."""

from __future__ import annotations

from kvpressure_planner.audit.checks.context import Context
from kvpressure_planner.audit.engine import Engine
from kvpressure_planner.audit.model import Verdict

_SHOWN = 3


def known(engine: Engine, context: Context) -> Verdict:  # noqa: ARG001 - every check gets both
    """Check: The server's version has the options.

    One that it does not have ends the server before it starts, and a newer image may have fewer.
    """
    audit, used = engine.runtime.audit, engine.reading.options
    gone = {name: versions for name, versions in audit.removed.items() if name in used}
    if not gone:
        hidden = engine.reading.hidden
        none = "none that a version is known to lack"
        return Verdict("unknown", f"{none}, but {hidden[0]}") if hidden else Verdict("pass", none)
    version, title = audit.version(engine.image), engine.runtime.title
    lacking = [name for name, (_, without) in gone.items() if version is not None and version >= without]
    name = next(iter(lacking or gone))
    since = ".".join(map(str, gone[name][1]))
    place, others = engine.option_place(name), len(lacking or gone) - 1
    more = f" (and {others} more)" if others else ""
    if lacking:
        reason = f"--{name}{more} is no option of {title} {since} and later, and the image is {engine.image}"
        return Verdict("fail", f"{reason}: the server does not start", place=place)
    if version is not None and all(last is None or version <= last for last, _ in gone.values()):
        return Verdict("pass", f"--{name}{more} is there until {title} {since} at the latest")
    unclear = f"the version in {engine.image} is not known" if engine.image else "which version this is, is not known"
    return Verdict("unknown", f"--{name}{more} is no option of {title} {since} and later; {unclear}", place=place)
