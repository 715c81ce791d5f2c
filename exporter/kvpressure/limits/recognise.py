"""Tells whether a container is a vLLM server, and on which port it serves its API and `/metrics`."""

from __future__ import annotations

import re
from typing import Final

from kvpressure.limits.arguments import Options
from kvpressure.limits.launch import KSERVE_MODULE, SHELLS, base
from kvpressure.limits.numbers import whole
from kvpressure.limits.shell import Words
from kvpressure.limits.start import Server, Start

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
_SCRIPT: Final = re.compile(r"vllm|serv|start|entry")


def is_vllm(image: str, start: Start) -> bool:
    """Whether this container serves vLLM's API: by what it runs, or by an image whose entrypoint does.

    Workers of a multi-node engine (`--headless`, `ray start`) are not: they serve no page. Never raises.
    """
    if start.seen:
        return any(_serves(server, image) for server in start.servers)
    name = _name(image)
    if name == KSERVE_MODULE:
        on_gpu = not start.command and image.rsplit(":", 1)[-1].endswith("-gpu")
        return on_gpu and all(_vllm_backend(server.options) for server in start.servers)
    if not _SERVERS.fullmatch(name) or _OTHERS.search(name):
        return False
    if start.command:
        return _by_script([base(word) for word in (*start.command, *start.args)])
    return _by_entrypoint(image, name, start.args)


def serving_port(start: Start) -> int | None:
    """The port of `--port`, None where none is given (vLLM then takes 8000) or it cannot be read.

    `VLLM_PORT` is not it: vLLM's documentation says that it is for internal use and not the API server's.
    """
    ports = {_port(server) for server in start.servers if "headless" not in server.options.given}
    return ports.pop() if len(ports) == 1 and not start.cut else None


def _port(server: Server) -> int | None:
    default = KSERVE_PORT if server.module == KSERVE_MODULE else None
    value = server.options.given.get("http-port" if default else "port")
    port = None if value is None else whole(value.text)
    return default if port is None else int(port) if port <= 65535 else None


def _serves(server: Server, image: str) -> bool:
    if server.module == KSERVE_MODULE:
        return _vllm_backend(server.options) and not image.rsplit("/", 1)[-1].endswith("-cpu")
    return "headless" not in server.options.given


def _vllm_backend(options: Options) -> bool:
    return "backend" not in options.given or options.given["backend"].text in {"auto", "vllm"}


def _by_entrypoint(image: str, name: str, args: Words) -> bool:
    """Arguments alone go to the image's entrypoint; that of rocm/vllm is a shell."""
    if name == "vllm" and "rocm/" in image:
        return False
    return not args or base(args[0]) not in _OTHER_COMMANDS


def _by_script(words: list[str]) -> bool:
    """A start script of the image's own is believed where its name says that it starts a server."""
    script = words[1] if len(words) > 1 and words[0] in SHELLS else words[0]
    named = script.endswith(".sh") and _SCRIPT.search(script) is not None
    return named and not _OTHERS.search(script) and "worker" not in words


def _name(image: str) -> str:
    """`registry:5000/vllm/vllm-openai:v0.9@sha256:…` is `vllm-openai`."""
    return base(image.split("@", 1)[0]).split(":", 1)[0].lower()
