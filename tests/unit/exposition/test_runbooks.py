import re
import subprocess
from itertools import pairwise

import click
import pytest
import yaml

from kvpressure.bundle.options import VLLM_ONLY
from kvpressure.cli import COMMANDS, installed, main
from kvpressure.config.thresholds import load_thresholds
from kvpressure.diagnosis.symptoms import NAMES
from kvpressure.exposition import runbooks
from kvpressure.exposition.families import FAMILIES
from kvpressure.model.family import Family
from kvpressure.model.verdict import Cause
from tests.support.rules import known_vllm_series, recorded
from tests.support.runbook_pages import ALERTS, HOSTILE, PAGES, blocks, paste, spans, tokens
from tests.support.tools import need

pytestmark = pytest.mark.process

SECTIONS = ["Meaning", "Impact", "Diagnosis", "Mitigation", "Verification", "Prevention"]
PROGRAMS = {"kubectl", "kvpressure", "grep", "head", "tail", "sleep", "curl", "nvidia-smi", "sudo"}
KUBECTL = {
    "cordon": set(),
    "delete": {"--grace-period"},
    "describe": set(),
    "edit": set(),
    "exec": {"--"},
    "get": {"-o", "-l", "--watch", "--field-selector", "--sort-by", "--all-namespaces"},
    "logs": {"--tail", "--previous", "--timestamps"},
    "port-forward": set(),
    "rollout": {"--timeout"},
    "scale": {"--replicas"},
    "set": {"--requests", "--limits"},
    "top": {"--containers"},
    "uncordon": set(),
}
ROUTERS = {"--router-mode", "--routing-logic"}
VLLM = {
    "--api-server-count",
    "--data-parallel-hybrid-lb",
    "--enable-prefix-caching",
    "--gpu-memory-utilization",
    "--kv-cache-dtype",
    "--enable-mfu-metrics",
    "--kv-offloading-size",
    "--kv-transfer-config",
    "--limit-mm-per-prompt",
    "--long-prefill-token-threshold",
    "--max-cpu-loras",
    "--max-loras",
    "--max-model-len",
    "--max-num-batched-tokens",
    "--max-num-queued-reqs",
    "--max-num-queued-tokens",
    "--max-num-seqs",
    "--override-generation-config",
    "--scheduling-policy",
    "--structured-outputs-config.backend",
    "--tensor-parallel-size",
}


def headings(name: str, level: str) -> list[str]:
    return [
        text.content for opened, text in pairwise(tokens(name)) if opened.type == "heading_open" and opened.tag == level
    ]


def test_every_alert_has_a_runbook_and_every_runbook_an_alert():
    assert runbooks.names() == ALERTS


@pytest.mark.parametrize("name", ALERTS)
def test_a_runbook_has_the_six_sections_in_order_each_with_something_in_it(name):
    assert headings(name, "h1") == [name]
    assert headings(name, "h2") == SECTIONS
    bodies = re.split(r"^## \w+$", runbooks.source(name), flags=re.MULTILINE)[1:]
    assert all(len(body.split()) >= 4 for body in bodies)


@pytest.mark.parametrize("name", ALERTS)
def test_a_runbook_is_short_and_begins_with_commands(name):
    lines = runbooks.source(name).splitlines()
    assert len(lines) <= 110
    diagnosis = lines[lines.index("## Diagnosis") :]
    assert diagnosis.index("```bash" if name != "KVPressureThresholdsDiffer" else "```promql") <= 6
    assert lines.index("## Diagnosis") <= 14


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_to_pages_and_headings_that_are_there(name):
    for target in re.findall(r"\]\(([^)]*)\)", runbooks.source(name)):
        page, _, heading = target.partition("#")
        assert page.removesuffix(".md") in PAGES, target
        anchors = [title.lower().replace(" ", "-") for title in headings(page.removesuffix(".md"), "h2")]
        assert not heading or heading in anchors, target


def test_the_list_names_every_runbook_once():
    rows, _, _ = runbooks.for_people(runbooks.INDEX).partition("\n## ")
    assert re.findall(r"^\| \[(\w+)\]\(\1\.md\) \| [A-Zv].+ .+ \|$", rows, re.MULTILINE) == list(ALERTS)


def test_the_list_explains_every_placeholder():
    rows = re.findall(r"^\| `(\$[A-Z]+)` \| `(\w+)`", runbooks.source(runbooks.INDEX), re.MULTILINE)
    assert {slot: label.removesuffix("_name") for slot, label in rows} == runbooks.PLACEHOLDERS


@pytest.mark.parametrize("name", PAGES)
def test_commands_leave_nothing_open_but_the_placeholders_and_what_they_set_themselves(name):
    code = "\n".join(blocks(name, "bash"))
    own = {f"${variable}" for variable in re.findall(r"(?:^|; )([A-Z]+)=", code, re.MULTILINE)}
    assert set(re.findall(r"\$\{?[A-Z]+", code.replace("${", "$"))) <= set(runbooks.PLACEHOLDERS) | own
    queries = "\n".join(blocks(name, "promql"))
    assert set(re.findall(r"\$\w+", queries)) <= set(runbooks.PLACEHOLDERS)
    prose = re.sub(r"```.*?```", "", runbooks.source(name), flags=re.DOTALL)
    assert name == runbooks.INDEX or "$" not in prose


@pytest.mark.parametrize("name", PAGES)
def test_every_block_is_of_a_known_language_and_bash_understands_it(name):
    assert {token.info for token in tokens(name) if token.type == "fence"} <= {"bash", "promql"}
    for block in blocks(name, "bash"):
        for code in (block, runbooks.fill(block, "bash", HOSTILE)):
            done = subprocess.run(["/bin/bash", "-n"], input=code, capture_output=True, text=True, check=False)
            assert (done.returncode, done.stderr) == (0, ""), code


@pytest.mark.parametrize("name", PAGES)
def test_a_hostile_label_is_one_argument_and_starts_nothing(name, tmp_path):
    pasted = paste(name, HOSTILE, tmp_path)
    assert pasted.files <= {"before.yaml", "current.log", "previous.log"}
    assert pasted.errors == ""
    words = [word for command in pasted.commands for word in command]
    for slot, parameter in runbooks.PLACEHOLDERS.items():
        if slot != "$TARGET" and re.search(re.escape(slot) + r"\b", "\n".join(blocks(name, "bash"))):
            assert any(HOSTILE[parameter] in word for word in words), slot


@pytest.mark.parametrize("name", PAGES)
def test_every_command_is_one_that_exists(name, tmp_path):
    for program, *arguments in paste(name, {"namespace": "prod", "pod": "llama-0"}, tmp_path).commands:
        assert program in PROGRAMS
        if program == "kvpressure":
            accepted(arguments)
        if program == "kubectl":
            known(arguments)


def accepted(arguments: list[str]) -> None:
    """The command line parses, where the command's package is installed; nothing is run."""
    command = subcommand(arguments[0])
    if command is None:
        return
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(click.Path, "convert", lambda self, value, *_: value)
        command.make_context(arguments[0], arguments[1:])


def subcommand(name: str) -> click.Command | None:
    """The command, None if it exists and its package is not installed here."""
    assert name in COMMANDS
    return main.get_command(click.Context(main), name) if name in installed() else None


def known(arguments: list[str]) -> None:
    if arguments[0] == "kvpressure":  # kubectl's plugin is the program itself
        accepted(arguments[1:])
        return
    if arguments[0] == "-n":
        del arguments[:2]
    verb, *rest = arguments
    ours = rest[: rest.index("--") + 1] if "--" in rest else rest
    options = {word.partition("=")[0] for word in ours if word.startswith("-")}
    assert options <= KUBECTL[verb], arguments


@pytest.mark.parametrize("name", PAGES)
def test_what_a_sentence_tells_to_type_exists(name):
    for span in spans(name):
        words = span.split()
        if words[0] == "kvpressure" and len(words) > 1:
            accepted(words[1:]) if len(words) > 2 else subcommand(words[1])
        if words[0] == "kubectl":
            known(words[1:])
        if words[0].startswith("--"):
            assert words[0].partition("=")[0] in VLLM | ROUTERS | {"--force", "--selector"}, span


def test_numbers_are_those_of_the_thresholds():
    t = load_thresholds()
    cut = f"{t.advice.sequences_cut_min_ratio * 100:.0f} to {t.advice.sequences_cut_max_ratio:.0%}".replace("%", " %")
    for name in ("KVPressureCacheTooSmall", "KVPressurePreemptionThrash", "KVPressureDeviceOutOfMemory"):
        assert cut in runbooks.source(name)
    text = " ".join(runbooks.source("KVPressureDeviceOutOfMemory").split())
    assert f"{t.advice.memory_target_ratio:g}" in text
    assert f"{t.advice.memory_target_long_context_ratio:g} for long contexts or bursts" in text


@pytest.mark.parametrize("name", ALERTS)
def test_every_runbook_keeps_the_gpu_running_out_apart_from_the_pool_running_out(name):
    text = " ".join(runbooks.source(name).split())
    assert re.search(r"device OOM|KVPressureDeviceOutOfMemory|which-memory-failed", text)
    assert re.search(r"\bpool\b|KV cache", text)


@pytest.mark.parametrize("name", ALERTS)
def test_lowering_the_memory_target_never_stands_alone(name):
    for paragraph in re.split(r"\n\n|\n(?=\d\. |- |\|)", runbooks.source(name)):
        if "--gpu-memory-utilization" in paragraph and re.search(r"\b[Ll]ower", paragraph):
            assert re.search(r"OOM|shrink|worse|pool", paragraph), paragraph


@pytest.mark.parametrize("name", PAGES)
def test_recovery_is_never_read_from_silence(name):
    for block in blocks(name, "promql"):
        assert not re.search(r"(bottleneck|symptom)\{[^}]*\} == 1", block)


@pytest.mark.parametrize("name", PAGES)
def test_nothing_leads_outside(name):
    text = runbooks.source(name)
    assert set(re.findall(r"https?://([^/:\s`]+)", text)) <= {"localhost", "$INSTANCE", "$AT", "ENGINE"}
    assert not re.search(r"(?<![\w.])/(home|root|work|Users|tmp|opt)/", text)
    assert not re.search(r"<[a-zA-Z/!]", text)


SELECTOR = re.compile(r"([\w:]+)\{([^}]*)\}|\b(kvpressure_\w+|up)\b")
MATCHER = re.compile(r'(\w+)(?:=~|!=|=)"([^"]*)"')
SCRAPE = {"instance", "job"}
OF_VLLM = {"namespace", "pod", "reason"}
"""Labels that pages without an exporter match by: Prometheus' own of a pod, and one of vLLM's."""


def queries(name: str) -> list[str]:
    return [line for block in blocks(name, "promql") for line in block.splitlines() if line.strip()]


def series() -> dict[str, Family]:
    """Every series name of the families, histograms and summaries by all their names."""
    found = {family.name: family for family in FAMILIES}
    for family in FAMILIES:
        if family.type in ("histogram", "summary"):
            found |= {family.name + end: family for end in ("_bucket", "_count", "_sum")}
    return found


@pytest.mark.parametrize("name", PAGES)
def test_queries_ask_for_series_and_labels_that_there_are(name):
    families = series()
    for query in queries(name):
        selectors = list(SELECTOR.finditer(query))
        assert selectors, query
        for found in selectors:
            metric = found[1] or found[3]
            if metric == "up" or metric in recorded() | recorded(VLLM_ONLY):
                continue
            if metric.startswith("vllm:"):
                assert name.startswith("KVPressureVLLM")
                assert metric in known_vllm_series()
                assert {label for label, _ in MATCHER.findall(found[2])} <= OF_VLLM, query
                continue
            family = families[metric]
            labels = {label for label, _ in MATCHER.findall(found[2] or "")}
            assert labels <= {*family.scope.labels, *family.labels, *SCRAPE}, query
            assert "quantile" not in family.labels or "quantile" in labels, query
            assert family.type != "histogram" or metric.endswith(("_bucket", "_count", "_sum")), query


@pytest.mark.parametrize("name", PAGES)
def test_causes_and_symptoms_that_queries_name_exist(name):
    known = {"symptom": set(NAMES), "cause": {cause.value for cause in Cause}}
    for query in queries(name):
        for label, value in MATCHER.findall(query):
            assert label not in known or set(value.split("|")) <= known[label], query


def test_prometheus_understands_every_query_filled_in_or_not(tmp_path):
    written = [query for name in PAGES for query in queries(name)]
    filled = [runbooks.fill(query, "promql", values) for query in written for values in ({}, HOSTILE, {"model": "m"})]
    rules = [{"record": f"q:{number}", "expr": query} for number, query in enumerate([*written, *filled])]
    path = tmp_path / "queries.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "runbooks", "rules": rules}]}))
    command = [need("promtool", "prometheus"), "check", "rules", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(written) > 50


def test_a_value_stays_within_its_string():
    query = runbooks.fill('kvpressure_score_ratio{model_name="$MODEL"}', "promql", {"model": 'a"} or vector(1) # \\'})
    assert query == 'kvpressure_score_ratio{model_name="a\\"} or vector(1) # \\\\"}'


def test_a_matcher_without_a_value_is_left_out():
    query = 'kvpressure_symptom{target="$TARGET",engine="$ENGINE"} > kvpressure_tokens_total{kind="prompt",pod="$POD"}'
    assert runbooks.fill(query, "promql", {}) == 'kvpressure_symptom > kvpressure_tokens_total{kind="prompt"}'
    asked = runbooks.fill(query, "promql", {"target": ",}", "pod": ""})
    assert asked == 'kvpressure_symptom{target=",}"} > kvpressure_tokens_total{kind="prompt"}'
