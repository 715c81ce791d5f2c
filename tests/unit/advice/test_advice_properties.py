import json
import math
import re
import shlex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvpressure.advice.advise import Limit, Limits, Place
from kvpressure.model.verdict import Cause, Stage
from kvpressure.printable import clean
from tests.support.advice_cases import PROCESS, PRODUCTION, advice, kv, limits

# 40,000 tokens: within caps of 1500 + 400 tokens 21 fit, and 44 run at most.
TIGHT = {"limits": limits(kv_capacity_tokens=Limit(40_000, "page")), "preempting": True}

tokens = st.floats(1.0, 2e5)
maybe = st.one_of(st.none(), st.floats(1.0, 5000.0).map(math.floor).map(float))
states = st.sampled_from([None, False, True])


@st.composite
def pressed(draw):
    """Any KV pressure: limits known or not, any lengths, any evidence of crashes."""
    prompt, output = sorted([draw(tokens), draw(tokens)]), sorted([draw(tokens), draw(tokens)])
    derived = {
        "prompt_tokens": {"0.5": prompt[0], "0.95": prompt[1]},
        "output_tokens": {"0.5": output[0], "0.95": output[1]},
        "requests_running_max": draw(maybe),
        "requests_running": draw(maybe),
        "requests_waiting": draw(st.floats(0, 500)),
        "engine_gpu_memory_used_ratio": draw(st.one_of(st.none(), st.floats(0.05, 1.0))),
        "arrival_burstiness_ratio": draw(st.floats(1.0, 10.0)),
    }
    current, memory = draw(maybe), draw(st.one_of(st.none(), st.floats(0.1, 1.0)))
    found = Limits(
        max_num_seqs=None if current is None else Limit(current),
        gpu_memory_utilization=None if memory is None else Limit(memory, "page"),
        kv_capacity_tokens=Limit(draw(st.floats(16.0, 1e7)), "page"),
    )
    return {
        "derived": derived,
        "limits": found,
        "stage": draw(st.sampled_from([Stage.BUILDING, Stage.COLLAPSED, Stage.FAILING])),
        "device_oom": draw(states),
        "host_oom": draw(states),
        "memory_rising": draw(states),
        "preempting": draw(states),
    }


@settings(max_examples=200, deadline=None)
@given(pressed())
def test_a_new_max_num_seqs_is_a_cut_within_the_bounds_and_only_against_preemption(case):
    action = kv(**case).get("max_num_seqs")
    known = case["limits"].max_num_seqs
    bases = [value for value in (known and known.value, case["derived"]["requests_running_max"]) if value]
    if action is None:
        return
    assert case["preempting"] is True
    new, base = int(action.flags["--max-num-seqs"]), min(bases)
    assert 1 <= new < base
    assert math.ceil(base * 0.5) <= new <= math.floor(base * 0.75)


@settings(max_examples=200, deadline=None)
@given(pressed())
def test_the_memory_target_falls_only_with_evidence_of_a_device_oom_and_rises_only_without(case):
    action, limit = kv(**case)["memory_headroom"], case["limits"].gpu_memory_utilization
    if not action.flags:
        return
    new = float(action.flags["--gpu-memory-utilization"])
    if case["device_oom"]:
        longest, capacity = case["limits"].max_model_len, case["limits"].kv_capacity_tokens
        if new not in (0.6, 0.7):
            assert capacity is None or new >= limit.value * longest.value / capacity.value - 1e-6
        assert limit is None or new < limit.value
    else:
        assert limit.value < new <= 0.9


@settings(max_examples=100, deadline=None)
@given(pressed())
def test_the_rollout_carries_exactly_the_flags_that_were_argued_for(case):
    actions = kv(**case)
    argued = {name: value for key, action in actions.items() if key != "apply" for name, value in action.flags.items()}
    assert (actions["apply"].flags if "apply" in actions else {}) == argued


hostile = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=20) | st.sampled_from(
    ["'; rm -rf / #", "$(reboot)", "`id`", "a b", 'x"y', "\n\ntouch /tmp/x", "--all", "\x1b[2J"]
)


@st.composite
def anywhere(draw):
    name = st.one_of(st.just(""), hostile)
    return Place(
        kubernetes=draw(states),
        namespace=draw(name),
        workload=draw(name),
        pod=draw(name),
        container=draw(name),
        unit=draw(name),
        model_name=draw(name),
        target=draw(name),
    )


@settings(max_examples=150, deadline=None)
@given(anywhere(), st.sampled_from(list(Cause)), states)
def test_every_command_is_a_complete_line_in_which_names_from_outside_stay_single_words(place, cause, device_oom):
    for action in advice(cause, Stage.FAILING, place=place, device_oom=device_oom, host_oom=True):
        for line in action.commands:
            assert line.isprintable()
            words = shlex.split(line)
            if line.startswith("kubectl") and place.namespace:
                assert words[:3] == ["kubectl", "-n", clean(place.namespace)]


@settings(max_examples=100, deadline=None)
@given(anywhere())
def test_queries_to_verify_with_have_balanced_strings_whatever_the_model_is_called(place):
    for check in (check for action in kv(place=place).values() for check in action.checks):
        if check.startswith("kvpressure_"):
            selector = re.match(
                r'kvpressure_\w+(\{(\w+="(?:[^"\\\n]|\\.)*",?)*\})? [<>=]+ [\d.]+(  # now [\d.,]+)?$', check
            )
            assert selector is not None, check


@pytest.mark.parametrize("cause", list(Cause))
@pytest.mark.parametrize("stage", list(Stage))
@pytest.mark.parametrize("symptom", ["preempting", "device_oom", "host_oom", "memory_rising"])
def test_no_printed_condition_holds_now(cause, stage, symptom):
    for check in (check for action in advice(cause, stage, **{symptom: True}) for check in action.checks):
        found = re.search(r" ([<>]=?) ([\d.]+)  # now ([\d.,]+)$", check)
        if found is not None:
            now, bound = float(found[3].replace(",", "")), float(found[2])
            assert now >= bound if found[1][0] == "<" else now <= bound, check


@pytest.mark.parametrize("cause", list(Cause))
@pytest.mark.parametrize("place", [PRODUCTION, PROCESS], ids=["kubernetes", "process"])
def test_commands_for_a_known_place_have_no_placeholder_for_what_is_known(cause, place):
    for action in advice(cause, Stage.FAILING, place=place, device_oom=True):
        assert not {"NAMESPACE", "DEPLOYMENT", "POD", "CONTAINER", "UNIT"} & set(action.placeholders), action.key
        kinds = {"kubectl" in line for line in action.commands if not line.startswith("#")}
        assert place is not PROCESS or True not in kinds


@pytest.mark.parametrize("cause", list(Cause))
def test_placeholders_that_occur_are_listed(cause):
    for action in advice(cause, Stage.FAILING, place=Place(), device_oom=True, host_oom=True):
        for line in action.commands:
            used = set(re.findall(r"\b(?:NAMESPACE|DEPLOYMENT|POD|CONTAINER|UNIT|MODEL|REPLICAS|CPUS|MEMORY)\b", line))
            assert used <= set(action.placeholders)


def test_the_patch_that_is_pasted_appends_every_flag_to_the_arguments():
    line = next(line for line in kv(memory_rising=True, **TIGHT)["apply"].commands if " patch " in line)
    patch = json.loads(shlex.split(line)[-1])
    assert [(op["op"], op["value"]) for op in patch] == [
        ("add", "--max-num-seqs=22"),
        ("add", "--max-num-batched-tokens=4096"),
    ]
    assert all(op["path"].endswith("/args/-") for op in patch)
