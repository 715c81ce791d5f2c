"""The commands at the prompt that name pods or a cluster, with each real kubectl through the run's own API server."""

import asyncio
import json
import os
import shutil
import signal
import sys
from pathlib import Path

from tests.e2e_kubernetes.api import Object
from tests.e2e_kubernetes.cluster import NAMESPACE, Cluster
from tests.e2e_kubernetes.exporter import command_environment
from tests.e2e_kubernetes.programs import Programs
from tests.e2e_kubernetes.report import Timeline

HIDDEN_SECONDS = 90.0


async def at_the_prompt(line: Timeline, cluster: Cluster, programs: Programs, kubeconfig: Path, stranger: Path) -> None:
    """Every command with every kubectl there is, with its port-forward, logs and RBAC."""
    cluster.log("llama-0", "ERROR torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", restarts=0)
    cluster.log("llama-0", "INFO started", restarts=1)
    config_map = {"metadata": {"name": "engine", "namespace": NAMESPACE}, "data": {"config.yaml": "max-num-seqs: 12\n"}}
    path = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
    await cluster.api.create(path, {"apiVersion": "v1", "kind": "ConfigMap", **config_map})
    for program in programs.kubectls:
        prompt = Prompt(_folder_of(program, kubeconfig), kubeconfig)
        version = json.loads(await _said(program, "version", "--client", "--output=json"))["clientVersion"][
            "gitVersion"
        ]
        line.chapter(f"At the prompt, with kubectl {version}")
        await _triage(line, prompt)
        await _refusals(line, prompt, Prompt(prompt.folder, stranger))
        await _others(line, prompt, kubeconfig.parent)
        await _ended(line, prompt)


def _folder_of(program: str, kubeconfig: Path) -> Path:
    """Return a folder for PATH in which kubectl is this one."""
    folder = kubeconfig.parent / f"path-{abs(hash(program))}"
    folder.mkdir(exist_ok=True)
    link = folder / "kubectl"
    link.unlink(missing_ok=True)
    link.symlink_to(Path(shutil.which(program) or program).resolve())
    return folder


async def _said(*command: str) -> str:
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    return (await process.communicate())[0].decode()


class Prompt:
    """Somebody's shell: a kubectl on PATH, and a kubeconfig."""

    def __init__(self, folder: Path, kubeconfig: Path) -> None:
        self.folder = folder
        self.environment = command_environment(kubeconfig)
        self.environment |= {"PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(folder)}

    async def start(self, *words: str) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        command = (sys.executable, "-m", "kvpressure", *words)
        return await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe, env=self.environment)

    async def run(self, *words: str) -> tuple[int, str, str]:
        """Exit code and output of `kvpressure`."""
        process = await self.start(*words)
        out, err = await asyncio.wait_for(process.communicate(), HIDDEN_SECONDS)
        return process.returncode or 0, out.decode(), " ".join(err.decode().split())


async def _triage(line: Timeline, prompt: Prompt) -> None:
    code, out, err = await prompt.run("triage", "-n", NAMESPACE, "deploy/llama", "--json", "--duration", "12")
    found = json.loads(out) if out.startswith("{") else {}
    pods: dict[str, Object] = {pod["pod"]: pod for pod in found.get("pods", ())}
    line.hold("triage of a Deployment reaches its pods", {"llama-0", "llama-1"} <= set(pods), (sorted(pods), err))
    first = pods.get("llama-0", {})
    ended = (first.get("last_termination") or {}).get("reason")
    line.hold("and knows how llama-0 ended last", ended == "OOMKilled", first)
    limits = {limit["name"]: limit["value"] for limit in first.get("limits") or ()}
    line.hold("and its declared limits", limits.get("max_num_seqs") == 64, limits)
    previous = (first.get("previous_log") or {}).get("counts", {})
    line.hold("and what the container before it said", previous.get("device_oom", 0) >= 1, first.get("previous_log"))
    causes = {engine["target"].split(":")[0]: engine["cause"] for engine in found.get("engines", ())}
    line.hold("and diagnoses it", causes.get(f"{NAMESPACE}/llama-0") not in (None, "unknown"), (code, causes, err))


async def _refusals(line: Timeline, prompt: Prompt, stranger: Prompt) -> None:
    code, _, err = await stranger.run("triage", "-n", NAMESPACE, "pod/llama-0")
    line.hold("who may not is told what", code == 2 and "you may not get pods llama-0" in err, (code, err))
    code, _, err = await prompt.run("triage", "-n", NAMESPACE, "pod/lama-0")
    line.hold("a name that is spelled wrong is suggested", code == 2 and "pod/llama-0" in err, (code, err))
    code, _, err = await prompt.run("triage", "-n", NAMESPACE, "pod/llama-0", "--context", "prd")
    line.hold("kubectl's own complaint of a context is passed on", code == 2 and 'context "prd"' in err, (code, err))
    code, _, err = await stranger.run("audit", "--cluster", "-n", NAMESPACE)
    refused = "you may not list them (RBAC: list deployments.apps)"
    line.hold("kinds that audit may not list are notes", code == 2 and refused in err, (code, err))


async def _others(line: Timeline, prompt: Prompt, folder: Path) -> None:
    code, out, err = await prompt.run("audit", "--cluster", "-A", "--json")
    found = json.loads(out) if out.startswith("{") else {"engines": ()}
    names = {engine["name"] for engine in found["engines"]}
    line.hold("audit --cluster finds the engines, kinds that are not installed are left out", bool(names), (code, err))
    trace = folder / "pod.jsonl"
    code, out, err = await prompt.run("record", "-n", NAMESPACE, "pod/llama-1", "-o", str(trace), "--duration", "3")
    line.hold("record writes the pages of a pod", code == 0 and trace.stat().st_size > 1000, (code, out, err))
    code, out, err = await prompt.run(
        *("plan", "--url", "pod/llama-1", "-n", NAMESPACE), *("--prompt-p95", "900", "--output-p95", "300")
    )
    line.hold("plan reads the pool of a pod", code in (0, 1) and "max-num-seqs" in out, (code, out, err))
    code, out, err = await prompt.run(
        *("whatif", "pod/llama-1", "-n", NAMESPACE, "--set", "max_num_seqs=8", "--duration", "15")
    )
    line.hold("whatif simulates a pod's engine, or says why not", code in (0, 2) and bool(out + err), (code, out, err))


async def _ended(line: Timeline, prompt: Prompt) -> None:
    """Every signal ends every kubectl."""
    for ending in (signal.SIGINT, signal.SIGTERM):
        process = await prompt.start("triage", "-n", NAMESPACE, "pod/llama-0", "pod/llama-1", "--watch")
        for _ in range(150):
            if len(forwards := _forwards()) >= 2:
                break
            await asyncio.sleep(0.1)
        process.send_signal(ending)
        await asyncio.wait_for(process.communicate(), 30)
        left = _forwards()
        line.hold(f"after {ending.name} no kubectl is left", len(forwards) >= 2 and not left, (forwards, left))


def _forwards() -> list[str]:
    """Return the processes of this namespace that forward a port."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"port-forward" in words:
            found.append(path.parent.name)
    return found
