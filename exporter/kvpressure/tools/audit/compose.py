"""Engines in docker compose files: services whose image or command is a server."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from kvpressure.config.strict_yaml import Path
from kvpressure.launch.declared import annotated
from kvpressure.tools.audit.engine import Engine
from kvpressure.tools.audit.hardware import gpu_text
from kvpressure.tools.audit.interpolation import interpolated
from kvpressure.tools.audit.manifests import Item, Manifests, flat, get, mapping, sequence, shape, strings, text, texts
from kvpressure.tools.audit.model import Problem
from kvpressure.tools.audit.pods import cautious, container, is_list, wrong_list
from kvpressure.tools.audit.scaling import counted


def engines(item: Item, given: Manifests) -> Iterator[Engine | Problem]:
    """Return the services that serve an engine's API; labels of a service are its annotations."""
    services = item.data.get("services")
    if services is None or "spec" in item.data:
        return
    if not isinstance(services, dict):
        yield Problem(
            f"services is {shape(services)} and should be a mapping; no engine is found in it",
            item.place(("services",)),
        )
        return
    item = replace(item, data={**item.data, "services": interpolated(services, item.source.variables)})
    for name, described in mapping(item.data["services"]).items():
        spec = mapping(described)
        wrong = tuple(_wrong(item, ("services", name), described))
        environment = _pairs(spec.get("environment"))
        as_container = {
            "name": name,
            "image": spec.get("image"),
            "command": _words(spec.get("entrypoint")),
            "args": _words(spec.get("command")),
            "env": [{"name": key, "value": value} for key, value in environment.items()],
        }
        at: Path = ("services", name)
        read = container(as_container, {}, item, given, at)
        if read.runtime is None:
            # What is no mapping is no service, whatever was meant.
            yield from wrong if not isinstance(described, dict) else ()
            continue
        yield from wrong
        annotations = _pairs(spec.get("labels"))
        reading = annotated(cautious(read.reading, wrong), annotations)
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


def _wrong(item: Item, at: Path, described: Any) -> Iterator[Problem]:
    """Return what of a service is of another kind than compose takes."""
    if not isinstance(described, dict):
        name = ".".join(map(str, at))
        yield Problem(f"{name} is {shape(described)} and should be a mapping; no engine is found in it", item.place(at))
    for key in ("entrypoint", "command"):
        value = mapping(described).get(key)
        if not isinstance(value, (str, int)) and not is_list(value, str):
            yield wrong_list(value, item, (*at, key), "strings")
    environment = mapping(described).get("environment")
    if not isinstance(environment, dict) and not is_list(environment, str):
        yield wrong_list(environment, item, (*at, "environment"), "strings")


def _words(command: Any) -> list[str]:
    """Return a command as a list, or as one string, which compose splits as a shell would without running one."""
    if not isinstance(command, str):
        return list(texts(command)) if is_list(command, str) else list(flat(command))
    try:
        return shlex.split(command, comments=False)
    except ValueError:
        return command.split()


def _pairs(value: Any) -> dict[str, str]:
    """Return a mapping, or the list of NAME=VALUE that means one."""
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
