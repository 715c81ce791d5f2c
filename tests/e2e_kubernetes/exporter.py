"""The exporter's container without a container runtime: its user, its mounts, its environment, its arguments.

A pod's read-only root filesystem is this machine's, mounted read-only; the namespaces are this run's own.
"""

import contextlib
import json
import os
import shlex
import sys
import sysconfig
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e_kubernetes.api import Object
from tests.e2e_kubernetes.chart import NAMESPACE, Chart
from tests.e2e_kubernetes.control_plane import run
from tests.e2e_kubernetes.gpus import driver_environment
from tests.e2e_kubernetes.programs import ROOT
from tests.support.processes import Process, get, running

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
OVERLAID = (Path("/etc"), Path("/var/lib"), Path("/var/log"))
URL = "http://127.0.0.1:10405"
IMAGE = Path("/run/image")
"""Python and the code, where a user without rights may look: both may lie in somebody's home."""

Labels = frozenset[tuple[str, str]]


async def own_mounts() -> None:
    """Make what a node's directories hold ours alone: nothing written there outlives the mount namespace."""
    await run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
    for at, place in enumerate(OVERLAID):
        upper, work = Path(f"/run/over/{at}/upper"), Path(f"/run/over/{at}/work")
        for folder in (upper, work):
            folder.mkdir(parents=True)
        options = f"lowerdir={place},upperdir={upper},workdir={work}"
        await run("mount", "-t", "overlay", "overlay", "-o", options, str(place))


async def image() -> dict[str, str]:
    """Mount what the container's image would hold, read-only; gives the environment that finds it."""
    parts = {"python": Path(sys.base_prefix), "site": Path(sysconfig.get_path("purelib")), "code": ROOT / "exporter"}
    for name, source in parts.items():
        place = IMAGE / name
        place.mkdir(parents=True)
        await run("mount", "--bind", "-o", "ro", str(source), str(place))
    driver = driver_environment()
    return {
        **driver,
        "PATH": f"{IMAGE}/python/bin:/usr/bin:/bin",
        "PYTHONPATH": f"{IMAGE}/code:{IMAGE}/site",
        "LD_LIBRARY_PATH": f"{IMAGE}/python/lib:{driver['LD_LIBRARY_PATH']}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


@dataclass(frozen=True, slots=True)
class Exporter:
    """The running exporter."""

    process: Process

    async def metrics(self) -> dict[tuple[str, Labels], float]:
        """Every series by name and labels."""
        return dict(_samples(await get(f"{URL}/metrics")))

    async def values(self, name: str, **labels: str) -> dict[Labels, float]:
        """The series of a family that have these labels."""
        wanted = frozenset(labels.items())
        found = (await self.metrics()).items()
        return {key[1]: value for key, value in found if key[0] == f"kvpressure_{name}" and wanted <= key[1]}

    async def sources(self, source: str) -> list[Mapping[str, Any]]:
        """Sources of a kind, from /targets; `kubernetes` is all of `kubernetes_pods` and the like."""
        told = json.loads(await get(f"{URL}/targets"))["sources"]
        return [one for one in told if one["source"] == source or one["source"].startswith(f"{source}_")]

    async def engines(self) -> set[str]:
        """Names of the engines polled."""
        return {str(one["target"]) for one in await self.sources("engine")}

    def status(self) -> dict[str, str]:
        """Its /proc status: who it runs as and with which capabilities."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return {key: " ".join(value.split()) for key, _, value in (line.partition(":") for line in lines)}


@contextlib.asynccontextmanager
async def exporter(chart: Chart, pod: Object, api_port: int, log: Path) -> AsyncIterator[Exporter]:
    """The pod's container as a process; ended with the block."""
    await _account(chart)
    await _mounts(chart, pod)
    container = pod["spec"]["containers"][0]
    environment = {
        **await image(),
        "HOME": "/",
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": str(api_port),
        **{one["name"]: _value(one, pod) for one in container.get("env", ())},
    }
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    words = [python, "-m", "kvpressure", *container["args"]]
    pairs = [f"{name}={value}" for name, value in environment.items()]
    inside = shlex.join(["exec", *_as_user(pod), "env", "-i", *pairs, *words])
    shell = f"mount -o remount,bind,ro / && cd / && {inside}"
    async with running(["unshare", "--mount", "sh", "-ec", shell], log) as process:
        yield Exporter(process)


def _as_user(pod: Object) -> list[str]:
    """What the pod's security context asks for, with setpriv."""
    context, own = pod["spec"]["securityContext"], pod["spec"]["containers"][0]["securityContext"]
    groups = ",".join(map(str, context.get("supplementalGroups", ())))
    words = ["setpriv", f"--reuid={context['runAsUser']}", f"--regid={context['runAsGroup']}"]
    words.append(f"--groups={groups}" if groups else "--clear-groups")
    if own["capabilities"]["drop"] == ["ALL"]:
        words += ["--bounding-set=-all", "--inh-caps=-all"]
    return words + ([] if own["allowPrivilegeEscalation"] else ["--no-new-privs"])


async def _account(chart: Chart) -> None:
    """What the kubelet projects into the pod."""
    files = {
        "token": await chart.token(),
        "ca.crt": chart.control_plane.authority.ca.read_text(),
        "namespace": NAMESPACE,
    }
    _write(ACCOUNT, files)


async def _mounts(chart: Chart, pod: Object) -> None:
    volumes = {one["name"]: one for one in pod["spec"]["volumes"]}
    for mount in pod["spec"]["containers"][0]["volumeMounts"]:
        volume, place = volumes[mount["name"]], Path(mount["mountPath"])
        if not any(place.is_relative_to(folder) for folder in OVERLAID):
            raise RuntimeError(f"{place}: only folders under {', '.join(map(str, OVERLAID))} can be mounted here")
        if "configMap" in volume:
            _write(place, await chart.config(volume["configMap"]["name"]))
        elif volume.get("hostPath", {}).get("path") != str(place):
            raise RuntimeError(f"{mount['name']}: a volume of this kind cannot be mounted here: {volume}")


def _write(folder: Path, files: Mapping[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)


def _value(variable: Mapping[str, Any], pod: Object) -> str:
    if "value" in variable:
        return str(variable["value"])
    found: Any = pod
    for key in variable["valueFrom"]["fieldRef"]["fieldPath"].split("."):
        found = found[key]
    return str(found)


def _samples(text: str) -> Iterator[tuple[tuple[str, Labels], float]]:
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        series, _, value = line.rpartition(" ")
        name, brace, rest = series.partition("{")
        pairs = [pair.partition('="') for pair in rest.removesuffix("}").rstrip(",").split('",')] if brace else []
        yield (name, frozenset((key, value.rstrip('"')) for key, _, value in pairs if key)), float(value)


def answers(url: str) -> bool:
    """Whether something answers there with a 200."""
    with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5) as response:
        return bool(response.status == 200)
    return False


def command_environment(kubeconfig: Path) -> dict[str, str]:
    """For commands of a person at a prompt."""
    return {**os.environ, "KUBECONFIG": str(kubeconfig)}
