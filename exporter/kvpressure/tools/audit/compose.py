"""Engines in docker compose files: services whose image or command is a server.

Compose interpolates variables first.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from kvpressure.config.strict_yaml import Path
from kvpressure.tools.audit import pods
from kvpressure.tools.audit.engine import Engine, counted
from kvpressure.tools.audit.manifests import Item, Manifests, flat, get, mapping, sequence, strings, text, texts
from kvpressure.tools.audit.model import Problem

_VARIABLE: Final = re.compile(r"\$(?:(\$)|([A-Za-z_]\w*)|\{([A-Za-z_]\w*)((?::?[-?+])?))", re.ASCII)
_BRACE: Final = re.compile(r"[{}]")
_NUMBER: Final = re.compile(r"[0-9]{1,9}")
_DEEPEST: Final = 8


def engines(item: Item, given: Manifests) -> Iterator[Engine | Problem]:
    """Return the services that serve an engine's API; labels of a service are its annotations."""
    services = item.data.get("services")
    if services is None or "spec" in item.data:
        return
    if not isinstance(services, dict):
        yield pods.wrong_mapping(services, item, ("services",), pods.NOT_FOUND)
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
        read = pods.container(as_container, {}, item, given, at)
        if read.runtime is None:
            # No mapping, so not a service.
            yield from wrong if not isinstance(described, dict) else ()
            continue
        yield from wrong
        annotations = _pairs(spec.get("labels"))
        scale: Path = (*at, "scale") if spec.get("scale") is not None else (*at, "deploy", "replicas")
        # A second server needs GPUs and a port of its own, which a larger number does not give it.
        replicas = replace(counted(item, scale), key="")
        engine = pods.engine_in(read, {}, at, replicas, annotations, pods.cautious(read.reading, wrong))
        yield replace(
            engine,
            title=f"compose/{name}",
            container=text(spec.get("container_name")) or name,
            style="shell" if isinstance(spec.get("command"), str) else engine.style,
            resources=pods.of_memory(
                get(spec, "deploy", "resources", "reservations", "memory") or spec.get("mem_reservation"),
                get(spec, "deploy", "resources", "limits", "memory") or spec.get("mem_limit"),
            ),
            resources_at=(*at, "deploy", "resources"),
            shared_memory=_shared(spec),
            gpus=_gpus(spec),
            gpu_key="count",
        )


def _wrong(item: Item, at: Path, described: Any) -> Iterator[Problem]:
    """Yield the values of a service that are of another kind than compose takes."""
    if not isinstance(described, dict):
        yield pods.wrong_mapping(described, item, at, pods.NOT_FOUND)
    for key in ("entrypoint", "command"):
        value = mapping(described).get(key)
        if not isinstance(value, (str, int)):
            yield from pods.wrong_list(value, item, (*at, key), "strings")
    environment = mapping(described).get("environment")
    if not isinstance(environment, dict):
        yield from pods.wrong_list(environment, item, (*at, "environment"), "strings")


def _words(command: Any) -> list[str]:
    """Return a command as a list, or as one string, which compose splits as a shell would without running one."""
    if not isinstance(command, str):
        return list(texts(command)) if pods.is_list(command, str) else list(flat(command))
    try:
        return shlex.split(command, comments=False)
    except ValueError:
        return command.split()


def _pairs(value: Any) -> dict[str, str]:
    """Return a mapping, or the list of NAME=VALUE that means one."""
    if isinstance(value, dict):
        return strings(value)
    return dict(word.split("=", 1) for word in texts(sequence(value)) if "=" in word)


def _shared(spec: Mapping[str, Any]) -> str:
    if (ipc := text(spec.get("ipc"))) in {"host", "shareable"}:
        return f"ipc: {ipc}"
    size = text(spec.get("shm_size"))
    return f"shm_size: {size}" if size else ""


def _gpus(spec: Mapping[str, Any]) -> int | str | None:
    """Return how many GPUs are reserved, "all" for every one, None for none."""
    mounted = any(word.startswith("/dev/kfd") or word.endswith("/gpu=all") for word in texts(spec.get("devices")))
    if mounted or spec.get("gpus") == "all":
        return "all"
    devices = [*sequence(get(spec, "deploy", "resources", "reservations", "devices")), *sequence(spec.get("gpus"))]
    for device in map(mapping, devices):
        if "gpu" not in texts(device.get("capabilities")) and device not in sequence(spec.get("gpus")):
            continue
        if ids := sequence(device.get("device_ids")):
            return len(ids)
        count = device.get("count", "all")
        return count if isinstance(count, int) and not isinstance(count, bool) else "all"
    # NVIDIA's runtime gives all of them, unless a variable says which.
    return "all" if spec.get("runtime") == "nvidia" else None


def interpolated(value: Any, variables: Mapping[str, str]) -> Any:
    """Return the value with every text in it interpolated; numbers among the results are numbers.

    `${VAR:-default}` is the default where VAR is not set. `${VAR}` of one that is not set stays, as `${VAR?}`: what the
    machine sets is not known, and it is not a variable of the container.
    """
    if isinstance(value, dict):
        return {key: interpolated(one, variables) for key, one in value.items()}
    if isinstance(value, list):
        return [interpolated(one, variables) for one in value]
    if not isinstance(value, str) or "$" not in value:
        return value
    found = _filled(value, variables, _DEEPEST)
    return int(found) if _NUMBER.fullmatch(found) else found


def _filled(written: str, variables: Mapping[str, str], depth: int) -> str:
    parts, at = [], 0
    while (match := _VARIABLE.search(written, at)) is not None:
        parts.append(written[at : match.start()])
        at = match.end()
        if match[1]:
            parts.append("$")
            continue
        rest = ""
        if match[3]:
            start, at = at, _end(written, at)
            rest = written[start : at - 1]
        parts.append(_value(match[2] or match[3], match[4] or "", rest, variables, depth))
    return "".join([*parts, written[at:]])


def _end(written: str, at: int) -> int:
    """Return the position behind the closing brace."""
    depth = 1
    for brace in _BRACE.finditer(written, at):
        depth += 1 if brace[0] == "{" else -1
        if not depth:
            return brace.end()
    return len(written) + 1


def _value(name: str, operator: str, rest: str, variables: Mapping[str, str], depth: int) -> str:
    found = variables.get(name)
    given = found is not None and (found or not operator.startswith(":"))
    if depth and operator.endswith("+" if given else "-"):
        return _filled(rest, variables, depth - 1)
    return found if given and found is not None and not operator.endswith("+") else f"${{{name}?}}"
