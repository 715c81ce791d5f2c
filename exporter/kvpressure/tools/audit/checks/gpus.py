"""As many GPUs as the server divides its model among, and the memory that their processes share."""

from __future__ import annotations

from kvpressure.commandline.numbers import whole
from kvpressure.tools.audit.checks.context import Context
from kvpressure.tools.audit.engine import Engine
from kvpressure.tools.audit.hardware import slice_asked
from kvpressure.tools.audit.model import Verdict


def enough(engine: Engine, context: Context) -> Verdict:  # noqa: ARG001 - every check gets both
    """Check that the GPUs that are asked for are those that the command needs."""
    place, needed, asked = engine.item.place(engine.resources_at or engine.at), _ranks(engine), engine.gpus
    if needed is None:
        return Verdict("unknown", "how many GPUs the command needs is not known", engine.arguments_place())
    if asked is None:
        given = slice_asked(engine.resources) or "none"
        return Verdict("unknown", f"the command needs {needed}; {given} is asked for here", place)
    if asked == "all":
        return Verdict("pass", f"the command needs {needed}, and all of the machine are given", place)
    if not isinstance(asked, int):
        return Verdict("unknown", f"the command needs {needed}; {asked} is not a number", place)
    return _compared(engine, needed, asked)


def _compared(engine: Engine, needed: int, asked: int) -> Verdict:
    place = engine.item.place(engine.resources_at or engine.at)
    if asked == needed:
        return Verdict("pass", f"{asked}, as the command needs", place)
    if asked > needed:
        reason = f"{asked} GPUs are asked for and the command uses {needed}"
        return Verdict("fail", reason, place, f"{engine.gpu_key}: {needed}")
    if engine.item.kind == "LeaderWorkerSet" or engine.runtime.starting.flags.sizing.data in engine.reading.options:
        return Verdict("unknown", f"the command needs {needed}, which may be on several machines; {asked} here", place)
    reason = f"the command needs {needed} GPUs and gets {asked}: it does not start"
    return Verdict("fail", reason, place, f"{engine.gpu_key}: {needed}")


def shared_memory(engine: Engine, context: Context) -> Verdict:  # noqa: ARG001 - every check gets both
    """Check /dev/shm, where processes of several GPUs exchange data: a container has 64 MiB unless told otherwise."""
    place, needed, given = engine.place(), _ranks(engine), engine.shared_memory
    if needed == 1:
        return Verdict("pass", "one GPU shares nothing", place)
    if given:
        return Verdict("pass", given, place)
    if needed is None:
        return Verdict("unknown", "how many GPUs the command needs is not known", engine.arguments_place())
    if given is None:
        return Verdict("unknown", "whether /dev/shm is larger than 64 MiB is not known", place)
    if engine.item.kind:
        fix = (
            "volumes:\n  - name: shm\n    emptyDir: {medium: Memory}  # counts against the memory limit\n"
            "volumeMounts:\n  - {name: shm, mountPath: /dev/shm}"
        )
    else:
        fix = "ipc: host  # or shm_size"
    return Verdict("fail", f"{needed} GPUs exchange data in /dev/shm, which has 64 MiB here", place, fix)


def _ranks(engine: Engine) -> int | None:
    """GPUs that the command takes on its machine, None where that is not known."""
    if engine.reading.hidden:
        return None
    sizing, count = engine.runtime.starting.flags.sizing, 1
    for option in (sizing.tensor, sizing.pipeline, sizing.data):
        if option in engine.reading.unclear:
            return None
        given = engine.reading.options.get(option)
        number = 1 if given is None else whole(given.text)
        if number is None:
            return None
        count *= int(number)
    return count
