"""A cluster of a few pods, and a stand-in for kubectl that reads it: put its folder on PATH."""

import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).with_name("kubectl_program.py")
ADDRESS = tuple[str, int]


@dataclass
class Cluster:
    """What kubectl knows, in `folder`.

    `engines` says where each pod's ports really are, `forbidden` is "verb resource", `absent` are kinds that are not
    installed; with a `complaint` every kubectl fails with it.
    """

    folder: Path
    objects: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    logs: dict[tuple[str, bool], str] = field(default_factory=dict)
    engines: dict[tuple[str, int], ADDRESS] = field(default_factory=dict)
    forbidden: set[str] = field(default_factory=set)
    absent: set[str] = field(default_factory=set)
    complaint: str = ""
    hangs: bool = False
    floods: bool = False

    def add(self, resource: str, item: dict[str, Any]) -> dict[str, Any]:
        """Store an object; gives it back."""
        self.objects.setdefault(resource, {})[item["metadata"]["name"]] = item
        return item

    def on_path(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Put the stand-in first on PATH."""
        for name, value in self.environment().items():
            monkeypatch.setenv(name, value)

    def environment(self) -> dict[str, str]:
        """Variables with which kubectl is the stand-in, of the cluster as `write` wrote it last."""
        program = self.folder / "bin" / "kubectl"
        program.parent.mkdir(exist_ok=True)
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -ISs {PROGRAM} "$@"\n')
        program.chmod(0o755)
        return {"PATH": f"{program.parent}:{os.environ['PATH']}", "KUBECTL_CLUSTER": str(self.folder / "cluster.json")}

    def write(self) -> None:
        """Write the cluster for the next kubectl."""
        found = {
            "objects": self.objects,
            "logs": {f"{pod} {'previous' if before else 'current'}": text for (pod, before), text in self.logs.items()},
            "engines": {f"{pod}:{port}": address for (pod, port), address in self.engines.items()},
            "forbidden": sorted(self.forbidden),
            "absent": sorted(self.absent),
            "complaint": self.complaint,
            "hangs": self.hangs,
            "floods": self.floods,
        }
        (self.folder / "cluster.json").write_text(json.dumps(found))

    def asked(self) -> list[str]:
        """What was asked so far, with the names of the flags."""
        return [line.partition(" ")[2] for line in self._log()]

    def alive(self) -> list[int]:
        """The processes of stand-ins that are still there."""
        return [pid for pid in (int(line.partition(" ")[0]) for line in self._log()) if _is_running(pid)]

    def _log(self) -> list[str]:
        file = self.folder / "cluster.json.asked"
        return file.read_text().splitlines() if file.exists() else []


def _is_running(pid: int) -> bool:
    try:
        return b"kubectl_program" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def engine_pod(name: str = "llama-0", **fields: Any) -> dict[str, Any]:
    """A running pod with one vLLM container; `fields` replace those of its only container's status."""
    running = {"state": {"running": {"startedAt": "2026-01-02T03:00:00Z"}}, "ready": True, "restartCount": 0}
    args = ["--model=llama", "--max-num-seqs=64", "--gpu-memory-utilization", "0.9"]
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "prod", "uid": f"uid-{name}", "labels": {"app": "llama"}},
        "spec": {
            "nodeName": "gpu-7",
            "containers": [{"name": "vllm", "image": "vllm/vllm-openai:v0.11.0", "args": args}],
        },
        "status": {
            "phase": "Running",
            "podIP": "10.1.2.3",
            "containerStatuses": [{"name": "vllm", **running, **fields}],
        },
    }
