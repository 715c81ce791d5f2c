"""`kvpressure triage` for pods, through the run's own API server."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from tests.e2e_kubernetes.cluster import NAMESPACE, Cluster
from tests.e2e_kubernetes.exporter import command_environment
from tests.e2e_kubernetes.report import Timeline


async def at_the_prompt(line: Timeline, cluster: Cluster, kubeconfig: Path, stranger: Path) -> None:
    """`kvpressure triage` through this API server, with its port-forward, logs and RBAC."""
    line.chapter("At the prompt")
    cluster.log("llama-0", "ERROR torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", restarts=0)
    cluster.log("llama-0", "INFO started", restarts=1)
    code, out, err = await triage(kubeconfig, "-n", NAMESPACE, "deploy/llama", "--json")
    found = json.loads(out) if out.startswith("{") else {}
    pods = {one["pod"]: one for one in found.get("pods", ())}
    held = {"llama-0", "llama-1"} <= set(pods)
    line.hold("triage of a Deployment reaches its pods through the API server", held, (sorted(pods), err))
    first = pods.get("llama-0", {})
    line.hold(
        "and knows how llama-0 ended last",
        (first.get("last_termination") or {}).get("reason") == "OOMKilled",
        first,
    )
    limits = {one["name"]: one["value"] for one in first.get("limits", ())}
    line.hold("and its declared limits", limits.get("max_num_seqs") == 64, limits)
    previous = (first.get("previous_log") or {}).get("counts", {})
    line.hold("and what the container before it said", previous.get("device_oom", 0) >= 1, first.get("previous_log"))
    causes = {one["target"].split(":")[0]: one["cause"] for one in found.get("engines", ())}
    line.hold("and diagnoses it", causes.get(f"{NAMESPACE}/llama-0") not in (None, "unknown"), (code, causes))
    code, _, err = await triage(stranger, "-n", NAMESPACE, "pod/llama-0")
    line.hold("who may not is told what", code == 2 and "you may not get pods llama-0" in err, (code, err))
    code, _, err = await triage(kubeconfig, "-n", NAMESPACE, "pod/lama-0")
    line.hold("a name that is spelled wrong is suggested", code == 2 and "pod/llama-0" in err, (code, err))


async def triage(kubeconfig: Path, *arguments: str) -> tuple[int, str, str]:
    """Exit code and output of `kvpressure triage`."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "kvpressure", "triage", *arguments, "--duration", "12"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=command_environment(kubeconfig),
    )
    out, err = await asyncio.wait_for(process.communicate(), 90.0)
    return process.returncode or 0, out.decode(), " ".join(err.decode().split())
