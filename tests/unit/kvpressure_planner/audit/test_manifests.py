import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpressure.config.thresholds import load_thresholds
from kvpressure_planner.audit import Manifests, audit, from_objects, read
from kvpressure_planner.audit.manifests import NOT_READ

TWO = "# one\nkind: A\nmetadata:\n  name: a\n---\nkind: B\nmetadata:\n  name: b\n  labels:\n    x: y\n"


def test_lines_are_counted_in_the_file_and_not_in_the_document() -> None:
    first, second = read(TWO, "f").items
    assert [first.line(), first.line(("metadata", "name"))] == [2, 4]
    assert [second.line(), second.line(("metadata", "labels", "x")), second.line(("metadata", "no"))] == [6, 10, 7]


def test_a_broken_document_hides_neither_the_one_before_nor_the_one_after() -> None:
    given_text = TWO.replace("---", "---\na: [\n---")
    found = read(given_text, "f")
    assert [item.kind for item in found.items] == ["A", "B"]
    assert [str(one.place) for one in found.problems] == ["f:7"]


def test_a_duplicate_key_names_both_lines_of_the_file() -> None:
    found = read("kind: A\n---\nkind: B\nkind: C\n", "f")
    assert [str(problem) for problem in found.problems] == ["f:4: kind: duplicate key, first given in line 3"]


@pytest.mark.parametrize("value", ["{{ .Release.Name }}-x", "{{HF_TOKEN}}", "{{- if x }}"])
def test_a_template_is_told_to_be_rendered(value: str) -> None:
    found = read(f"metadata:\n  name: {value}\n", "f")
    assert "render templates first (helm template)" in found.problems[0].message


@pytest.mark.parametrize("name", ["Makefile", "32_Makefile", "x.nix", "x.py", "x.conf", "x.toml"])
def test_a_file_of_a_format_that_is_not_read_is_told_so_and_not_how_to_indent(name: str) -> None:
    assert [problem.message for problem in read("a:\n\t@b\n", name).problems] == [NOT_READ]


def test_the_code_of_a_markdown_text_is_read_with_its_lines() -> None:
    fenced = "~~~yaml\nkind: A\n~~~\n```python\nkind: B\n```\n"
    found = read(f"# Title\n\n{fenced}\n    vllm serve x \\\n      --port 1\n", "README.md")
    assert [(item.kind, item.line()) for item in found.items] == [("A", 4), ("", 10)]


TERRAFORM = """resource "kubernetes_deployment_v1" "v" {
  metadata { name = "v" }
  spec { template { spec {
    container {
      name = "server"
      image = "vllm/vllm-openai"
      args = ["--model=x", "--tensor-parallel-size=2", "--max-num-seqs=64"]
      resources {
        limits = { "nvidia.com/gpu" = "2" }
      }
      volume_mount {
        mount_path = "/dev/shm"
      }
      readiness_probe {
        http_get {
          path = "/health"
        }
      }
    }
  } } }
}
"""


def test_a_pod_of_terraform_is_one_of_kubernetes() -> None:
    (engine,) = audit(read(TERRAFORM, "main.tf"), load_thresholds()).engines
    found = {finding.check: finding for finding in engine.findings}
    assert (engine.title, engine.container, found["max-num-seqs"].place.line) == ("Deployment/v", "server", 7)
    assert {found[check].status for check in ("gpus", "shared-memory", "probes")} == {"pass"}


def test_lists_are_taken_apart_and_keep_their_lines() -> None:
    found = read("kind: List\nitems:\n  - kind: A\n  - kind: PodList\n    items:\n      - kind: B\n", "f")
    assert [(item.kind, item.line()) for item in found.items] == [("A", 3), ("B", 6)]


def test_the_last_line_that_names_something_is_found_and_comments_are_not() -> None:
    item = read("kind: A\nargs:\n  - x=1\n  - x=2\n  # x=3\nlater: x=4\n", "f").items[0]
    assert item.find(re.compile("x="), ("args",)) == 4
    assert item.find(re.compile("y="), ("args",)) is None
    assert item.find(re.compile("x=")) == 6


def test_objects_of_a_cluster_have_no_lines_and_are_complete_without_problems() -> None:
    found = from_objects([{"kind": "A", "metadata": {"name": "a"}}], "cluster")
    assert found.complete
    assert str(found.items[0].place(("metadata",))) == "cluster"
    assert not (found + Manifests(())).complete


KEYS = [
    *("metadata", "spec", "template", "containers", "args", "command", "env", "image", "name", "annotations", "labels"),
    *("resources", "requests", "replicas", "volumes", "volumeMounts", "predictor", "model", "servingEngineSpec"),
    *("modelSpec", "vllmConfig", "keda", "prefill", "scaling", "ownerReferences", "items", "data"),
    *("slices", "services", "multinode", "nodeCount", "podGroupSize", "mainContainer", "leaderWorkerTemplate", "size"),
    *("livenessProbe", "startupProbe", "periodSeconds", "failureThreshold", "resourceProfile", "url", "parallelism"),
    *("deploymentConfig", "inference", "preset", "config", "run", "accelerators", "envs", "service", "limits"),
]
HOSTILE = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(KEYS), inner, max_size=5)),
    max_leaves=25,
)
KINDS = [
    "Pod",
    "Deployment",
    "LeaderWorkerSet",
    "InferenceService",
    "LLMInferenceService",
    "ConfigMap",
    "",
    "PodMonitor",
    "Model",
    "VLLMRuntime",
    "Workspace",
    "Operator",
]


@given(st.lists(st.tuples(st.sampled_from(KINDS), HOSTILE, HOSTILE), max_size=3))
def test_no_object_however_odd_breaks_the_audit(objects: list[tuple[str, object, object]]) -> None:
    engine = {"name": "vllm", "image": "vllm/vllm-openai:1"}
    made = [
        {"kind": kind, "metadata": meta, "spec": {"containers": [engine | (spec if isinstance(spec, dict) else {})]}}
        if kind in {"Pod", "Operator"}
        else {"kind": kind, "metadata": meta, "spec": spec, "servingEngineSpec": spec, "inference": spec}
        if kind != "Model" or not isinstance(spec, dict)
        else {"kind": kind, "metadata": meta, "spec": {"engine": "VLLM"} | spec}
        for kind, meta, spec in objects
    ]
    audit(from_objects(made, "cluster"), load_thresholds())


@given(st.text(alphabet="ab:-[]{}\n \"'#|>&*!%@?,\t\x00é"))
def test_no_text_however_odd_raises(text: str) -> None:
    audit(read(text, "f"), load_thresholds())
