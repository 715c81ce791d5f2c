"""The shell lines: what a careful operator would paste, every name from outside quoted.

A word in capitals is a placeholder for what cannot be known from outside. Comments hold no quotes, so that each line
is complete by itself.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

from kvpressure.advice.case import Place
from kvpressure.printable import clean

Lines = tuple[str, ...]

PLACEHOLDERS = {
    "NAMESPACE": "the Kubernetes namespace",
    "DEPLOYMENT": "the Deployment that runs the engine",
    "POD": "the pod of this engine",
    "CONTAINER": "the container that runs the engine",
    "UNIT": "the systemd unit that runs the engine",
    "REPLICAS": "replicas in all, as the step says",
    "CPUS": "CPU cores: at least one per GPU and one per API server, and two to spare",
    "MEMORY": "memory limit of the container, such as 64Gi",
}
"""What each placeholder stands for."""

_CONTAINERS = """jsonpath='{range .spec.template.spec.containers[*]}{.name}{"  "}{.command}{"  "}{.args}{"\\n"}{end}'"""


def placeholders(lines: Sequence[str]) -> tuple[str, ...]:
    """Return the placeholders that occur in the lines, in the order of `PLACEHOLDERS`."""
    words = set(re.findall(r"[A-Z]{3,}", "\n".join(lines)))
    return tuple(name for name in PLACEHOLDERS if name in words)


def quoted(name: str, placeholder: str) -> str:
    """Return `name` quoted for a shell, without control characters; the placeholder when it is not known."""
    return shlex.quote(clean(name)) if name else placeholder


def flag_words(flags: Mapping[str, str]) -> list[str]:
    """Return flags as engines take them, unquoted."""
    return [f"{name}={value}" if value else name for name, value in flags.items()]


class _Names(NamedTuple):
    """What commands name, quoted: `pod` with its container, `ready` is the wait for a rollout to end."""

    kubectl: str
    workload: str
    pod: str
    container: str
    pod_alone: str
    unit: str
    ready: str


def _names(place: Place) -> _Names:
    kubectl = f"kubectl -n {quoted(place.namespace, 'NAMESPACE')}"
    workload = f"{quoted(place.kind, '')}/{quoted(place.workload, 'DEPLOYMENT')}"
    pod, container = f"pod/{quoted(place.pod, 'POD')}", f" -c {quoted(place.container, '')}" if place.container else ""
    ready = f"{kubectl} rollout status {workload} --timeout=15m"
    return _Names(kubectl, workload, f"{pod}{container}", container, pod, quoted(place.unit, "UNIT"), ready)


def apply_flags(place: Place, flags: Mapping[str, str]) -> Lines:
    """Return commands that save the flags in force, change them and wait until the new server is ready."""
    words = flag_words(flags)
    of = _names(place)
    who = place.title
    patch = [{"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": word} for word in words]
    return _by_place(
        place,
        (
            f"{of.kubectl} get {of.workload} -o yaml > before.yaml",
            f"{of.kubectl} get {of.workload} -o {_CONTAINERS}",
            f"# when {who} is the first container (0) and args is a list: of two equal flags {who} takes the last",
            f"{of.kubectl} patch {of.workload} --type=json -p {shlex.quote(json.dumps(patch))}",
            f"# when args is one shell line (sh -c): kubectl edit, and put at its end: {' '.join(words)}",
            of.ready,
            f"# to go back: {of.kubectl} rollout undo {of.workload}",
        ),
        (
            f"ps -ww -o pid,args -p $(pgrep -d, -f {place.advice.server.process})",
            f"# under systemd: put these at the end of ExecStart, then restart: {' '.join(words)}",
            f"sudo systemctl edit --full {of.unit}",
            f"sudo systemctl restart {of.unit}",
            f"# by hand: stop it, and start the command that ps shows with these at its end: {' '.join(words)}",
        ),
    )


def last_words(place: Place) -> Lines:
    """Return commands that keep a crashed server's log, which a rollout deletes."""
    of = _names(place)
    return _by_place(
        place,
        (f"{of.kubectl} logs {of.pod} --previous --tail=2000 > previous.log",),
        (f"journalctl -u {of.unit} -n 2000 > previous.log",),
    )


def restart(place: Place) -> Lines:
    """Replace the servers in good order."""
    of = _names(place)
    rollout = (f"{of.kubectl} get pods -o wide", f"{of.kubectl} rollout restart {of.workload}", of.ready)
    return _by_place(place, rollout, _restart_unit(of))


def replace_stuck(place: Place) -> Lines:
    """Return commands that replace the stuck server only; the others go on."""
    of = _names(place)
    return _by_place(place, (f"{of.kubectl} delete {of.pod_alone} --grace-period=30", of.ready), _restart_unit(of))


def _restart_unit(of: _Names) -> Lines:
    return f"sudo systemctl restart {of.unit}", f"journalctl -u {of.unit} -f"


def save_evidence(place: Place) -> Lines:
    """Return commands that save a stuck server's evidence: page, log, stacks of its Python threads, GPUs."""
    of, process = _names(place), place.advice.server.process
    dump = f"for p in $(pgrep -f {process}); do sudo py-spy dump --pid $p; done > stacks.txt"
    pids = f"$(grep -la {process} /proc/[0-9]*/cmdline | cut -d/ -f3)"
    inside = shlex.quote(f"pip install -q py-spy; for p in {pids}; do py-spy dump --pid $p; done")
    debug = f"{of.kubectl} debug {of.pod_alone} -i --profile=sysadmin --image=python:3.12-slim"
    target = f"--target={quoted(place.container, 'CONTAINER')}"
    return (
        f"curl -s {_page(place)} > page.prom",
        *_by_place(
            place,
            (
                f"{of.kubectl} logs {of.pod} --timestamps --tail=5000 > engine.log",
                f"{debug} {target} -- sh -c {inside} > stacks.txt",
                f"{of.kubectl} exec {of.pod} -- nvidia-smi > gpus.txt",
            ),
            (f"journalctl -u {of.unit} -n 5000 > engine.log", f"pip install py-spy && {dump}", "nvidia-smi > gpus.txt"),
        ),
    )


def whether_it_runs(place: Place) -> Lines:
    """Return commands that show state, last log lines and page of a server that does not answer."""
    of = _names(place)
    logs = f"{of.kubectl} logs {of.pod}"
    return (
        f"curl -sS --max-time 30 {_page(place)} | head -5",
        *_by_place(
            place,
            (f"{of.kubectl} get {of.pod_alone} -o wide", f"{logs} --tail=50", f"{logs} --previous --tail=50"),
            (f"systemctl status {of.unit} --no-pager", f"journalctl -u {of.unit} -n 50 --no-pager"),
        ),
    )


def times_as_many(times: int) -> str:
    """Return by how much the number of replicas grows, in words."""
    return f"{'twice' if times == 2 else f'{times} times'} as many as now"


def add_replica(place: Place, times: int | None = None) -> Lines:
    """Return commands that add a server, or scale to `times` as many as now."""
    count, of = "one more than now" if times is None else times_as_many(times), _names(place)
    more = "a second server on another GPU, and add it"
    if times is not None and times > 2:
        more = f"{times - 1} more on other GPUs for each server of now, and add them"
    return _by_place(
        place,
        (
            f"{of.kubectl} get {of.workload}",
            f"{of.kubectl} scale {of.workload} --replicas=REPLICAS   # {count}",
            of.ready,
        ),
        (
            f"ps -ww -o args -p $(pgrep -d, -f {place.advice.server.process})",
            "# with that command and another --port:",
            f"# start {more} to the load balancer",
        ),
    )


def more_cpu(place: Place) -> Lines:
    """Return commands that add CPU for the API process and the engine's scheduler."""
    of = _names(place)
    quota = f"sudo systemctl set-property {of.unit} CPUQuota= CPUWeight=1000"
    return _by_place(place, _resources(of, "--requests=cpu=CPUS --limits=cpu=CPUS"), ("# under systemd", quota))


def more_host_memory(place: Place) -> Lines:
    """Return commands that add host memory for the container."""
    killed = ("sudo dmesg --ctime | grep -i killed", "free -h")
    return _by_place(place, _resources(_names(place), "--limits=memory=MEMORY"), killed)


def _resources(of: _Names, what: str) -> Lines:
    return f"{of.kubectl} set resources {of.workload}{of.container} {what}", of.ready


def past_failures(place: Place) -> Lines:
    """Look for a device OOM in the logs."""
    of, grep = _names(place), f"grep -iE '{place.advice.server.failures}'"
    return _by_place(
        place, (f"{of.kubectl} logs {of.pod} --previous | {grep}",), (f"journalctl -u {of.unit} --since=-1h | {grep}",)
    )


def look_again(place: Place) -> Lines:
    """Return commands that sample the engine again; a rollout ends the port-forward to the pod that it replaces."""
    of = _names(place)
    if place.workload and place.namespace:
        return (f"kvpressure triage -n {quoted(place.namespace, '')} {of.workload} --duration 60",)
    triage = f"kvpressure triage {quoted(_url(place), '')} --duration 60"
    address = urlsplit(_url(place))
    if place.in_kubernetes is False or not is_loopback(_url(place)):
        return (triage,)
    ports = f"{address.port or place.serving_port}:{place.serving_port}"
    return (f"# in Kubernetes, in another terminal: {of.kubectl} port-forward {of.workload} {ports}", triage)


def is_loopback(url: str) -> bool:
    """Return whether an address is of the machine that asks."""
    return urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1")


def _by_place(place: Place, kubernetes: Lines, process: Lines) -> Lines:
    if place.in_kubernetes is None:
        return ("# in Kubernetes", *kubernetes, "# as a plain process", *process)
    return kubernetes if place.in_kubernetes else process


def _url(place: Place) -> str:
    return place.url or f"http://localhost:{place.serving_port}"


def _page(place: Place) -> str:
    return quoted(_url(place).rstrip("/").removesuffix("/metrics") + "/metrics", "")
