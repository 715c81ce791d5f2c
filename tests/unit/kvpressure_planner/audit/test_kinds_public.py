"""Files as public repositories have them, of every kind of start: each is one engine, and what it states is known."""

from __future__ import annotations

from typing import Final

import pytest

from kvpressure.config.thresholds import load_thresholds
from kvpressure_planner.audit import audit, read
from tests.support.audits import findings_of
from tests.support.tools import FIXTURES

FILES: Final = FIXTURES / "audit"
LIMITS: Final = ("max_model_len", "max_num_seqs", "gpu_memory_utilization")
GPUS: Final = {
    "of all": "the command needs {}, and gets all of the machine",
    "of none": "the command needs {} and none is requested: it does not start, unless every container gets them all",
    "open": "the command needs 1; how many it gets is not given here",
    "unknown": "how many GPUs the command needs is not known",
    "": "{}, as the command needs",
}

EXPECTED: Final = {
    "ansible-role.yml": ("24576 40 0.9", "2 of all"),
    "ansible-shell.yml": ("16384 64 0.9", "1 of all"),
    "ansible-systemd.yml": ("16384 64 0.85", "1 of all"),
    "app-defaultcontainer.yaml": ("16384 64 0.9", "1"),
    "app-shell.yaml": ("16384 64 0.9", "1"),
    "app-template.yaml": ("40960 8 0.92", "1"),
    "appset.yaml": ("16384 64 0.9", "1"),
    "apptainer.sh": ("32768 - -", "4"),
    "argocd-values.yaml": ("16384 48 -", "1"),
    "argocd-valuesobject.yaml": ("16384 96 0.85", "1"),
    "bash-env.service": ("16384 64 0.9", "1 of all"),
    "case.sh": ("16384 64 0.9", "1 of all"),
    "cloud-config.yaml": ("16384 64 0.9", "1 of all"),
    "copied-unit.yaml": ("32768 48 -", "1 of all"),
    "docker-env.service": ("32768 48 0.88", "1 of all"),
    "docker-inspect.json": ("16384 64 0.9", "1 of all"),
    "ecs-task.json": ("16384 96 0.9", "1"),
    "env.container": ("16384 64 0.9", "1 of all"),
    "helm-release.tf": ("16384 64 0.9", "1"),
    "heredoc-compose.sh": ("16384 64 0.9", "1"),
    "heredoc-config.sh": ("10240 - 0.9", "unknown"),
    "heredoc-tee.sh": ("16384 72 0.87", "1 of all"),
    "if-beside.sh": ("16384 32 -", "1 of all"),
    "if-else.sh": ("16384 - 0.9", "1 of all"),
    "if-seqs.yaml": ("16384 48 0.9", "1"),
    "instance@.service": ("16384 64 0.9", "unknown"),
    "kustomize-helm.yaml": ("16384 64 0.9", "1"),
    "launch-template.tf": ("16384 64 0.9", "1 of all"),
    "llm.nomad.hcl": ("16384 64 0.92", "1"),
    "nim-compose.yaml": ("65536 64 0.8", "1"),
    "nim-docker-run.sh": ("- - 0.2", "1 of all"),
    "nim-nimservice.yaml": ("32768 - 0.85", "2"),
    "nim-run-env.sh": ("16384 64 0.85", "2"),
    "nim-values.yaml": ("40960 96 0.9", "4"),
    "nim.sh": ("4096 - 0.2", "1 of all"),
    "nim.yaml": ("16384 - -", "1"),
    "oci-bare.json": ("16384 64 -", "open"),
    "oci-config.json": ("32768 200 0.9", "open"),
    "oci-sh.json": ("16384 64 0.9", "1 of all"),
    "playbook.yaml": ("16384 64 0.92", "1 of all"),
    "podman.service": ("16384 64 0.9", "1 of all"),
    "quadlet.container": ("65536 24 0.9", "1 of all"),
    "raw-exec.nomad.hcl": ("16384 64 0.9", "1"),
    "role-tasks.yml": ("16384 64 0.9", "1 of all"),
    "runpod-double.sh": ("16384 64 0.9", "1"),
    "runpod-gql.sh": ("16384 64 0.9", "1"),
    "runpod-graphql.json": ("16384 64 0.92", "1"),
    "runpod-here.sh": ("16384 64 0.9", "1"),
    "runpod-rest.sh": ("32768 64 0.92", "2"),
    "runpod-template.tf": ("16384 64 0.92", "1"),
    "runpod-worker.json": ("16384 256 0.95", "1"),
    "runpod.tf": ("16384 64 0.9", "1"),
    "runpodctl.sh": ("8192 - 0.95", "1"),
    "server.sbatch": ("- 2000 -", "4"),
    "sky-fleet.yaml": ("16384 64 0.9", "1 of all"),
    "sky-list.yaml": ("16384 64 0.9", "2"),
    "sky-resources.yaml": ("32768 128 -", "8"),
    "sky-serve.yaml": ("8192 - 0.95", "1"),
    "slurm-a100.sh": ("- 16 -", "1"),
    "slurm-a6000.sh": ("32768 - -", "4"),
    "slurm-tp.sh": ("131072 - 0.9", "2"),
    "slurm-typed.sh": ("16384 64 0.9", "1"),
    "srun-image.sh": ("- - 0.8", "8"),
    "srun.sh": ("16384 64 0.9", "2"),
    "startup-script.tf": ("32768 100 -", "1"),
    "user-data-docker.tf": ("16384 64 0.92", "1 of all"),
    "user-data.tf": ("16384 64 0.92", "1 of all"),
    "vars.nomad.hcl": ("16384 64 0.9", "1 of all"),
    "vllm-template.nomad": ("8192 128 0.85", "1 of none"),
    "vllm.container": ("16384 64 -", "1 of all"),
    "vllm.nomad.hcl": ("16384 32 0.9", "1"),
    "vllm.service": ("16384 - -", "1 of all"),
    "wrap.sh": ("16384 64 0.9", "1"),
}
"""By file: the longest request, sequences and share of the memory ("-" where none is known), and the GPUs."""


@pytest.mark.parametrize("name", sorted(path.name for path in FILES.iterdir()))
def test_a_public_file_is_one_engine_with_the_limits_that_it_states(name: str) -> None:
    report = audit(read((FILES / name).read_text(), name), load_thresholds())
    (judged,) = report.engines
    limits = judged.reading.limits
    shown = [f"{limits[limit].value:g}" if limit in limits else "-" for limit in LIMITS]
    found = findings_of(report, judged)["gpus"]
    expected, gpus = EXPECTED[name]
    number, _, rest = gpus.partition(" ")
    assert " ".join(shown) == expected
    assert not report.problems
    assert (found.check == "options" and gpus == "unknown") or found.reason == GPUS[
        rest if number.isdecimal() else gpus
    ].format(number)
