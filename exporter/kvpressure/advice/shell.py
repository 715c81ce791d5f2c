"""The shell lines: what a careful operator would paste, every name from outside quoted.

A word in capitals is a placeholder for what cannot be known from outside. Comments hold no quotes, so that each line
is complete by itself.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
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
    "MODEL": "the model, with your other flags",
    "REPLICAS": "how many there are to be in all, as the step says",
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


def apply_flags(place: Place, flags: Mapping[str, str]) -> Lines:
    """Return commands that save the flags in force, change them and wait until the new server is ready."""
    words = " ".join(map(shlex.quote, flag_words(flags)))
    kube, workload, who = _kubectl(place), _workload(place), place.title
    patch = [{"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": w} for w in flag_words(flags)]
    return _by_place(
        place,
        (
            f"{kube} get {workload} -o yaml > before.yaml",
            f"{kube} get {workload} -o {_CONTAINERS}",
            f"# when {who} is the first container (0) and args is a list: of two equal flags {who} takes the last",
            f"{kube} patch {workload} --type=json -p {shlex.quote(json.dumps(patch))}",
            f"# when args is one shell line (sh -c): kubectl edit, and put at its end: {' '.join(flag_words(flags))}",
            f"{kube} rollout status {workload} --timeout=15m",
            f"# to go back: {kube} rollout undo {workload}",
        ),
        (
            f"ps -ww -o pid,args -p $(pgrep -d, -f {place.advice.process})",
            f"# under systemd: put these at the end of ExecStart, then restart: {' '.join(flag_words(flags))}",
            *_systemd_edit(place),
            "# by hand: stop it, and start it with the same command and these flags at its end",
            f"{place.advice.serve} {words}",
        ),
    )


def last_words(place: Place) -> Lines:
    """Return commands that keep a crashed server's log, which a rollout deletes."""
    return _by_place(
        place,
        (f"{_kubectl(place)} logs {_pod(place)}{_container(place)} --previous --tail=2000 > previous.log",),
        (f"journalctl -u {quoted(place.unit, 'UNIT')} -n 2000 > previous.log",),
    )


def restart(place: Place) -> Lines:
    """Replace the servers in good order."""
    kube, workload, unit = _kubectl(place), _workload(place), quoted(place.unit, "UNIT")
    return _by_place(
        place,
        (
            f"{kube} get pods -o wide",
            f"{kube} rollout restart {workload}",
            f"{kube} rollout status {workload} --timeout=15m",
        ),
        (f"sudo systemctl restart {unit}", f"journalctl -u {unit} -f"),
    )


def save_evidence(place: Place) -> Lines:
    """Return commands that save a stuck server's evidence: page, log, stacks of its Python threads, GPUs."""
    kube, pod = _kubectl(place), _pod(place)
    process = place.advice.process
    dump = f"for p in $(pgrep -f {process}); do sudo py-spy dump --pid $p; done > stacks.txt"
    found = f"$(grep -la {process} /proc/[0-9]*/cmdline | cut -d/ -f3)"
    inside = shlex.quote(f"pip install -q py-spy; for p in {found}; do py-spy dump --pid $p; done")
    debug = f"{kube} debug {pod} -i --profile=sysadmin --image=python:3.12-slim"
    target = f"--target={quoted(place.container, 'CONTAINER')}"
    return (
        f"curl -s {_page(place)} > page.prom",
        *_by_place(
            place,
            (
                f"{kube} logs {pod}{_container(place)} --timestamps --tail=5000 > engine.log",
                f"{debug} {target} -- sh -c {inside} > stacks.txt",
                f"{kube} exec {pod}{_container(place)} -- nvidia-smi > gpus.txt",
            ),
            (
                f"journalctl -u {quoted(place.unit, 'UNIT')} -n 5000 > engine.log",
                f"pip install py-spy && {dump}",
                "nvidia-smi > gpus.txt",
            ),
        ),
    )


def whether_it_runs(place: Place) -> Lines:
    """Return commands that show state, last log lines and page of a server that does not answer."""
    kube, pod, container = _kubectl(place), _pod(place), _container(place)
    unit = quoted(place.unit, "UNIT")
    return (
        f"curl -sS --max-time 30 {_page(place)} | head -5",
        *_by_place(
            place,
            (
                f"{kube} get {pod} -o wide",
                f"{kube} logs {pod}{container} --tail=50",
                f"{kube} logs {pod}{container} --previous --tail=50",
            ),
            (f"systemctl status {unit} --no-pager", f"journalctl -u {unit} -n 50 --no-pager"),
        ),
    )


def replace_stuck(place: Place) -> Lines:
    """Return commands that replace the stuck server only; the others go on."""
    kube, unit = _kubectl(place), quoted(place.unit, "UNIT")
    return _by_place(
        place,
        (
            f"{kube} delete {_pod(place)} --grace-period=30",
            f"{kube} rollout status {_workload(place)} --timeout=15m",
        ),
        (f"sudo systemctl restart {unit}", f"journalctl -u {unit} -f"),
    )


def add_replica(place: Place, times: int | None = None) -> Lines:
    """Return commands that add a server, or scale to `times` as many as now."""
    count = "one more than now" if times is None else f"{times} times as many as now"
    kube, workload = _kubectl(place), _workload(place)
    return _by_place(
        place,
        (
            f"{kube} get {workload}",
            f"{kube} scale {workload} --replicas=REPLICAS   # {count}",
            f"{kube} rollout status {workload} --timeout=15m",
        ),
        (
            "# start a second server on another GPU, and let the load balancer know it",
            f"{place.advice.serve} --port={place.serving_port + 1}",
        ),
    )


def more_cpu(place: Place) -> Lines:
    """Return commands that add CPU for the API process and the engine's scheduler."""
    container = f" -c {quoted(place.container, '')}" if place.container else ""
    return _by_place(
        place,
        (
            f"{_kubectl(place)} set resources {_workload(place)}{container} --requests=cpu=CPUS --limits=cpu=CPUS",
            f"{_kubectl(place)} rollout status {_workload(place)} --timeout=15m",
        ),
        ("# under systemd", f"sudo systemctl set-property {quoted(place.unit, 'UNIT')} CPUQuota= CPUWeight=1000"),
    )


def more_host_memory(place: Place) -> Lines:
    """Return commands that add host memory for the container."""
    container = f" -c {quoted(place.container, '')}" if place.container else ""
    return _by_place(
        place,
        (
            f"{_kubectl(place)} set resources {_workload(place)}{container} --limits=memory=MEMORY",
            f"{_kubectl(place)} rollout status {_workload(place)} --timeout=15m",
        ),
        ("sudo dmesg --ctime | grep -i killed", "free -h"),
    )


def past_failures(place: Place) -> Lines:
    """Look for a device OOM in the logs."""
    grep = f"grep -iE '{place.advice.failures}'"
    return _by_place(
        place,
        (f"{_kubectl(place)} logs {_pod(place)}{_container(place)} --previous | {grep}",),
        (f"journalctl -u {quoted(place.unit, 'UNIT')} --since=-1h | {grep}",),
    )


def look_again(place: Place, seconds: int = 60) -> Lines:
    """Return commands that sample the engine again; a rollout ends the port-forward to the pod that it replaces."""
    if place.workload and place.namespace:
        return (f"kvpressure triage -n {quoted(place.namespace, '')} {_workload(place)} --duration {seconds}",)
    triage = f"kvpressure triage {quoted(_url(place), '')} --duration {seconds}"
    address = urlsplit(_url(place))
    if place.in_kubernetes is False or address.hostname not in ("localhost", "127.0.0.1", "::1"):
        return (triage,)
    forward = (
        f"{_kubectl(place)} port-forward {_workload(place)} {address.port or place.serving_port}:{place.serving_port}"
    )
    return (f"# in Kubernetes, in another terminal: {forward}", triage)


def _by_place(place: Place, kubernetes: Lines, process: Lines) -> Lines:
    if place.in_kubernetes is None:
        return ("# in Kubernetes", *kubernetes, "# as a plain process", *process)
    return kubernetes if place.in_kubernetes else process


def _kubectl(place: Place) -> str:
    return f"kubectl -n {quoted(place.namespace, 'NAMESPACE')}"


def _workload(place: Place) -> str:
    return f"{quoted(place.kind, '')}/{quoted(place.workload, 'DEPLOYMENT')}"


def _pod(place: Place) -> str:
    return f"pod/{quoted(place.pod, 'POD')}"


def _container(place: Place) -> str:
    return f" -c {quoted(place.container, '')}" if place.container else ""


def _systemd_edit(place: Place) -> Lines:
    unit = quoted(place.unit, "UNIT")
    return (f"sudo systemctl edit --full {unit}", f"sudo systemctl restart {unit}")


def _url(place: Place) -> str:
    return place.url or f"http://localhost:{place.serving_port}"


def _page(place: Place) -> str:
    return quoted(_url(place).rstrip("/").removesuffix("/metrics") + "/metrics", "")
