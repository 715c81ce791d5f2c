"""Engines in docker compose files: services whose image or command is a server."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from kvpressure.audit.engine import Engine
from kvpressure.audit.hardware import gpu_text
from kvpressure.audit.manifests import Item, Manifests, get, mapping, sequence, strings, text, texts
from kvpressure.audit.pods import container
from kvpressure.audit.scaling import counted
from kvpressure.config.strict_yaml import Path
from kvpressure.limits.declared import annotated, read_limits


def engines(item: Item, given: Manifests) -> Iterator[Engine]:
    """The services that serve an engine's API; labels of a service are its annotations."""
    for name, described in mapping(item.data.get("services")).items():
        spec = mapping(described)
        environment = _pairs(spec.get("environment"))
        as_container = {
            "name": name,
            "image": spec.get("image"),
            "command": _words(spec.get("entrypoint")),
            "args": _words(spec.get("command")),
            "env": [{"name": key, "value": value} for key, value in environment.items()],
        }
        read = container(as_container, {}, item, given)
        if read.runtime is None:
            continue
        at: Path = ("services", name)
        annotations = _pairs(spec.get("labels"))
        reading = annotated(read_limits(read.start), annotations)
        scale: Path = (*at, "scale") if spec.get("scale") is not None else (*at, "deploy", "replicas")
        yield Engine(
            item=item,
            title=f"compose/{name}",
            container=text(spec.get("container_name")) or name,
            at=at,
            pod=at,
            style="shell" if read.in_shell or isinstance(spec.get("command"), str) else "args",
            reading=reading,
            # A second server needs GPUs and a port of its own, which no number gives it.
            replicas=replace(counted(item, scale), key=""),
            annotations=annotations,
            resources=_resources(spec),
            resources_at=(*at, "deploy", "resources"),
            model=reading.model,
            gpu=gpu_text({}, annotations),
            shared_memory=_shared(spec),
            gpus=_gpus(spec),
        )


def _words(command: Any) -> list[str]:
    """A command as a list, or as one string, which compose splits as a shell would without running one."""
    if not isinstance(command, str):
        return list(texts(command))
    try:
        return shlex.split(command, comments=False)
    except ValueError:
        return command.split()


def _pairs(value: Any) -> dict[str, str]:
    """A mapping, or the list of NAME=VALUE that means one."""
    if isinstance(value, dict):
        return strings(value)
    return dict(word.split("=", 1) for word in texts(sequence(value)) if "=" in word)


def _resources(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """Memory as pods call it."""
    found = mapping(get(spec, "deploy", "resources"))
    asked = get(found, "reservations", "memory") or spec.get("mem_reservation")
    most = get(found, "limits", "memory") or spec.get("mem_limit")
    known = {"requests": asked, "limits": most}
    return {name: {"memory": value} for name, value in known.items() if value is not None}


def _shared(spec: Mapping[str, Any]) -> str:
    if (ipc := text(spec.get("ipc"))) in {"host", "shareable"}:
        return f"ipc: {ipc}"
    size = text(spec.get("shm_size"))
    return f"shm_size: {size}" if size else ""


def _gpus(spec: Mapping[str, Any]) -> int | str | None:
    """How many GPUs are reserved, "all" for every one, None where none is."""
    if spec.get("gpus") == "all":
        return "all"
    devices = [*sequence(get(spec, "deploy", "resources", "reservations", "devices")), *sequence(spec.get("gpus"))]
    for device in map(mapping, devices):
        if "gpu" not in texts(device.get("capabilities")) and device not in sequence(spec.get("gpus")):
            continue
        if ids := sequence(device.get("device_ids")):
            return len(ids)
        count = device.get("count", "all")
        return count if isinstance(count, int) and not isinstance(count, bool) else "all"
    return None
