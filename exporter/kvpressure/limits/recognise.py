"""Tells whether a container is a vLLM server, and on which port it serves its API and `/metrics`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from kvpressure.limits.arguments import Given, given
from kvpressure.limits.launch import KSERVE_MODULE, SHELLS, Launch, base, launches, programs
from kvpressure.limits.numbers import whole

KSERVE_PORT: Final = 8080

# Images whose entrypoint is the server. The name is the last part of the path: registries are mirrored.
_SERVERS: Final = re.compile(
    r"vllm|vllm-openai(-[a-z0-9.-]+)?|vllm-serve|pytorch-vllm-serve|vllm-omni|vllm-ascend"
    r"|vllm-(cpu|cuda|rocm|tpu|xpu|gaudi|hpu|neuron|spyre|server)(-[a-z0-9.-]+)?|odh-vllm-[a-z0-9.-]+"
    r"|llm-d(-(cuda|rocm|xpu|cpu|hpu|tpu|aws|gke|dev))*"
)
_OTHERS: Final = re.compile(
    r"router|bench|client|simulator|-sim\b|exporter|operator|controller|gateway|proxy|sidecar|scheduler|production-stack"
)
# First words of arguments that replace what the entrypoint would serve.
_OTHER_COMMANDS: Final = frozenset(
    (
        *SHELLS,
        "bench",
        "chat",
        "complete",
        "run-batch",
        "collect-env",
        "sleep",
        "tail",
        "cat",
        "ray",
        "python",
        "python3",
    )
)
_SCRIPT: Final = re.compile(r"(vllm|serv|start|entry)[^/]*\.sh$")


def is_vllm(image: str, command: Sequence[str], args: Sequence[str]) -> bool:
    """Whether this container serves vLLM's API: by what it runs, or by an image whose entrypoint does.

    Workers of a multi-node engine (`--headless`, `ray start`) are not: they serve no page. Never raises.
    """
    found = launches(command, args, {})
    if found:
        return any(_serves(launch, image) for launch in found)
    name = _name(image)
    if name == KSERVE_MODULE:
        return not command and image.rsplit(":", 1)[-1].endswith("-gpu") and _vllm_backend(given(args))
    if not _SERVERS.fullmatch(name) or _OTHERS.search(name):
        return False
    return _by_script(command, args) if command else _by_entrypoint(image, name, args)


def serving_port(
    command: Sequence[str], args: Sequence[str], env: Mapping[str, str], files: Mapping[str, str] | None = None
) -> int | None:
    """The port of `--port`, None where none is given (vLLM then takes 8000) or it cannot be read.

    `VLLM_PORT` is not it: vLLM's documentation says that it is for internal use and not the API server's.
    `files` are the texts of mounted files by path, for `--config`.
    """
    found = launches(command, args, env)
    if not found:
        words = programs(command, args, env)
        found = (Launch(tuple(words[0]) if words else ()),)
    ports = {_port(launch, files or {}) for launch in found if "headless" not in given(launch.arguments)}
    return ports.pop() if len(ports) == 1 else None


def _port(launch: Launch, files: Mapping[str, str]) -> int | None:
    options = given(launch.arguments, files)
    default = KSERVE_PORT if launch.module == KSERVE_MODULE else None
    value = options.get("http-port" if default else "port")
    port = None if value is None else whole(value.text)
    return default if port is None else int(port) if port <= 65535 else None


def _serves(launch: Launch, image: str) -> bool:
    options = given(launch.arguments)
    if launch.module == KSERVE_MODULE:
        return _vllm_backend(options) and not image.rsplit("/", 1)[-1].endswith("-cpu")
    return "headless" not in options


def _vllm_backend(options: Mapping[str, Given]) -> bool:
    return "backend" not in options or options["backend"].text in {"auto", "vllm"}


def _by_entrypoint(image: str, name: str, args: Sequence[str]) -> bool:
    """Arguments alone go to the image's entrypoint; that of rocm/vllm is a shell."""
    if name == "vllm" and "rocm/" in image:
        return False
    return not args or base(args[0]) not in _OTHER_COMMANDS


def _by_script(command: Sequence[str], args: Sequence[str]) -> bool:
    """A start script of the image's own is believed where its name says that it starts a server."""
    words = [base(word) for word in (*command, *args)]
    shell = len(words) > 1 and words[0] in SHELLS
    script = words[1] if shell else words[0]
    return _SCRIPT.search(script) is not None and not _OTHERS.search(script) and "worker" not in words


def _name(image: str) -> str:
    """`registry:5000/vllm/vllm-openai:v0.9@sha256:…` is `vllm-openai`."""
    return base(image.split("@", 1)[0]).split(":", 1)[0].lower()
