"""A runtime is one folder: nothing outside it knows its names."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import kvpressure
from kvpressure.config.target import Target
from kvpressure.daemon.pollers import poll_names, tables_of
from kvpressure.model.environment import LIMIT_NAMES, LOG_KINDS
from kvpressure.runtimes.registry import ASSUMED, NAMES, RUNTIMES, TABLES, named
from kvpressure.runtimes.runtime import Runtime
from tests.support.signal_names import COUNTERS, GAUGES, HISTOGRAMS, OWN_GAUGES

EXPORTER = Path(kvpressure.__file__).parents[1]

OWN_OPTIONS = {
    # `kvpressure plan` and `triage` take limits in our own vocabulary, whatever engine it is about.
    "cli/findings.py": ("max-num-seqs", "max-num-batched-tokens", "gpu-memory-utilization"),
    "kvpressure_planner/cli/plan/__init__.py": (
        "gpu-memory-utilization",
        "kv-cache-dtype",
        "kv-cache-memory-bytes",
        "max-model-len",
        "max-num-batched-tokens",
        "tensor-parallel-size",
        "pipeline-parallel-size",
        "data-parallel-size",
        "enable-expert-parallel",
    ),
    "kvpressure_planner/capacity/case.py": ("kv-cache-memory-bytes",),
    "kvpressure_planner/cli/whatif/__init__.py": ("max-input-tokens",),
    "launch/__init__.py": ("max-input-tokens",),
    # Fields of models' configurations and of the tables of step times, which are somebody else's options too.
    "capacity/model_fields.py": ("max_seq_len",),
    "capacity/silicon.py": ("tp_size",),
    "kvpressure_planner/cli/whatif/changes.py": ("gpu-memory-utilization", "max-input-tokens"),
    # The audit's checks are named after the limits; their names are in people's --skip lists.
    "kvpressure_planner/audit/checks/__init__.py": ("max-num-seqs", "max-num-batched-tokens"),
    "kvpressure_planner/audit/playbook.py": ("max-num-seqs", "max-num-batched-tokens"),
    # Docstrings that say what may be written, by an example.
    "kvpressure_planner/audit/engine.py": ("max-num-seqs",),
    "commandline/options.py": ("max-num-seqs",),
    # A detail of causes, which the engine's option of the same name leads to; the vocabulary is fixed.
    "signals/kv.py": ("watermark",),
    "diagnosis/precedence.py": ("watermark",),
    "diagnosis/predicates/room.py": ("watermark",),
    "diagnosis/rules/kv_cache_pressure.py": ("watermark",),
    "diagnosis/rules/bounds.py": ("watermark",),
    "model/catalogue.py": ("watermark",),
}
"""Where a word that is also some runtime's flag is ours."""


NAMED_BY_INTENT = {
    # Rules that read one runtime's own series are a flavour of the bundle, which is called after it: what differs are
    # its templates (rules/vllm-only), its labels and its words.
    **dict.fromkeys(
        (
            "bundle/alertmanager.py",
            "bundle/docs.py",
            "bundle/options.py",
            "bundle/rules.py",
            "bundle/templates.py",
        ),
        "vllm",
    ),
    "cli/generate.py": "vllm",  # --flavour vllm-only
    # Step times are those of one runtime's kernels, under the name that aiconfigurator has for it.
    "capacity/silicon.py": "vllm",
    "simulation/step_table.py": "vllm",
    # Objects of clusters that a runtime's own charts define, and its command, which they start.
    "kvpressure_planner/audit/kinds.py": "vllm",
    # The hint for a page that an old version serves under names of nobody.
    "engines/reader.py": "trtllm",
    # The same executor behind another server.
    "runtimes/tensorrtllm_backend/__init__.py": "trtllm",
    # Its project's router, which is no engine, and repeats series of engines under their names.
    "runtimes/gateways.py": "vllm",
}
"""Where a runtime is named on purpose."""


WORDS = {"parallel", "watermark"}
"""Flags that are words of everybody's, the glossary's (CONTRIBUTING.md) among them."""


def sources(runtime: Runtime) -> Iterator[tuple[str, str]]:
    """The packages' Python files outside the runtime's folder, named from the core's folder, with their text."""
    for path in sorted(EXPORTER.rglob("*.py")):
        inside = str(path.relative_to(EXPORTER)).removeprefix("kvpressure/")
        if not inside.startswith(f"runtimes/{runtime.name}/"):
            yield inside, path.read_text()


def flags(runtime: Runtime) -> set[str]:
    """The options that the runtime's limits, advice and plans are written with, without dashes."""
    remedies = runtime.advice.remedies
    changes = [change.flag for change in (remedies.frontends, remedies.reserve) if change is not None]
    found = {*runtime.advice.flags.limits.values(), *runtime.planning.flags.values(), *changes}
    own = runtime.starting.flags
    found |= {option for option, _ in own.limits.values()} | {own.output_cap, own.sizes_pool}
    return {flag.removeprefix("--") for flag in found} - {"", *WORDS}


def metrics(runtime: Runtime) -> set[str]:
    """The names of its metrics without their prefix: others may be called like the shortest of them."""
    table = runtime.table
    bare = {name.removeprefix(table.prefix) for name in table.all_names() if name.startswith(table.prefix)}
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in bare}


@pytest.mark.parametrize("runtime", RUNTIMES, ids=NAMES)
def test_no_code_outside_its_folder_names_a_runtime(runtime: Runtime):
    naming = {path for path, text in sources(runtime) if runtime.name in text.lower()}
    assert naming == {path for path, name in NAMED_BY_INTENT.items() if name == runtime.name}


@pytest.mark.parametrize("runtime", RUNTIMES, ids=NAMES)
def test_no_code_outside_its_folder_writes_a_runtimes_flags(runtime: Runtime):
    found = {
        (path, flag)
        for path, text in sources(runtime)
        for flag in flags(runtime)
        if re.search(rf"(?<![\w-]){re.escape(flag)}(?![\w-])", text) and flag not in OWN_OPTIONS.get(path, ())
    }
    assert {one for one in found if not one[0].startswith("runtimes/")} == set()


@pytest.mark.parametrize("runtime", RUNTIMES, ids=NAMES)
def test_no_code_outside_its_folder_names_a_runtimes_metrics(runtime: Runtime):
    signals = {*GAUGES, *COUNTERS, *HISTOGRAMS}
    telling = {name for name in metrics(runtime) if name.count("_") >= 2} - signals
    assert len(telling) >= 5
    outside = [(path, text) for path, text in sources(runtime) if not path.startswith("runtimes/")]
    found = {
        (path, name) for path, text in outside for name in telling if re.search(rf'(?<!kvpressure_)"{name}"', text)
    }
    assert found == set()


@pytest.mark.parametrize("runtime", RUNTIMES, ids=NAMES)
def test_a_runtime_is_whole(runtime: Runtime):
    table, advice = runtime.table, runtime.advice
    assert table.runtime == runtime.name
    read = {row.signal for row in table.gauges if not row.signal.startswith("_")}
    assert read <= {*GAUGES, *OWN_GAUGES}
    assert table.complete is not None or read == {row.signal for row in table.gauges}
    assert {row.signal for row in table.counters} <= set(COUNTERS)
    assert {row.signal for row in table.histograms} <= set(HISTOGRAMS)
    assert {"running", "waiting"} <= read
    assert {kind for kind, _, _ in runtime.logs.rows} <= set(LOG_KINDS)
    assert all(words == words.lower() for _, words, _ in runtime.logs.rows)
    assert set(runtime.starting.flags.limits) <= set(LIMIT_NAMES)
    limits = {"max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization"}
    assert limits & {*runtime.starting.flags.limits} <= set(advice.flags.limits)
    assert {"max_num_seqs", "max_num_batched_tokens"} <= set(advice.flags.limits) or not advice.flags.limits
    assert limits | {"max_model_len"} <= set(advice.words.limits)
    assert limits <= set(advice.words.unset)
    assert limits <= set(runtime.audit.undeclared)
    planned = {*limits, "max_model_len", "tensor_parallel", "kv_cache_dtype"}
    assert planned <= set(runtime.planning.flags)
    for limit in limits & {*runtime.starting.flags.limits}:
        assert advice.flags.limits[limit].replace("_", "-") == f"--{runtime.starting.flags.option(limit)}"


def test_one_runtime_is_assumed_and_the_names_are_the_folders():
    assert [runtime for runtime in RUNTIMES if runtime.assumed] == [ASSUMED]
    folders = {path.parent.name for path in (EXPORTER / "kvpressure" / "runtimes").glob("*/__init__.py")}
    assert set(NAMES) == folders
    assert named("no such runtime") is ASSUMED


def test_a_target_without_a_runtime_is_read_by_all_tables_and_asked_for_one_runtimes_names_once_it_is_known():
    names = poll_names(tables_of(Target("a", "http://a:1")))
    for table in TABLES:
        assert set(table.poll_names()) <= set(names.poll)
        assert names.own[table.runtime].poll == table.poll_names()
        assert names.own[table.runtime].full == table.all_names()


@pytest.mark.parametrize("runtime", RUNTIMES, ids=NAMES)
def test_a_target_with_a_runtime_is_read_by_that_one_alone(runtime: Runtime):
    assert tables_of(Target("a", "http://a:1", runtime=runtime.name)) == (runtime.table,)
