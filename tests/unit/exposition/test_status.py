"""The page and its JSON twin, from snapshots made by hand."""

import doctest
import html
import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace

import pytest

from kvpressure.advice.advise import Case, Place, advise_on
from kvpressure.advice.recommendation import Change
from kvpressure.config.thresholds import load_thresholds
from kvpressure.daemon.recommended import Advised
from kvpressure.exposition import Snapshot, wording
from kvpressure.exposition.panel import ident
from kvpressure.exposition.status import (
    CHARTED_ENGINES,
    content_security_policy,
    diagnosis_json,
    status_html,
    targets_html,
    targets_json,
)
from kvpressure.model import values
from kvpressure.model.action import Action
from kvpressure.model.environment import Environment
from kvpressure.model.samples import HistogramSample, SourceHealth
from kvpressure.model.values import Derived
from kvpressure.model.verdict import Cause, Diagnosis, Evidence, Stage
from kvpressure.model.view import EngineView, worst_first
from kvpressure.signals.history import Histories
from tests.support.observed import pressed_view
from tests.support.schemas import check
from tests.support.snapshots import collapsed
from tests.support.tools import ROOT
from tests.support.views import engine_view

pytestmark = pytest.mark.recorded

T = 1_767_225_600.0
EVIL = "\"><script>alert(1)</script>'<img src=x onerror=alert(1)>"
DOCS = ROOT / "docs"


def fake_action(title: str = "Cut max_num_seqs") -> Action:
    return Action(
        key="max_num_seqs",
        title=title,
        why="16 fit",
        current="64",
        new="32",
        cost="a restart",
        checks=("score < 0.2", "within 2 minutes"),
        commands=("kubectl -n chat patch", "kubectl -n chat rollout status"),
    )


def diagnosis(cause: Cause = Cause.HEALTHY, score: float | None = 0.0, stage: Stage = Stage.NONE) -> Diagnosis:
    symptoms = {
        "admission_blocked": Evidence("admission_blocked", True, "prompts did not fit", 0.9, 0.5, "ratio"),
        "kv_saturated": Evidence("kv_saturated", False, "cache used", 0.42, 0.9, "ratio"),
        "device_oom": Evidence("device_oom", None, "not known: no logs are read"),
    }
    return Diagnosis(T, T - 151, cause, 0.75, score, stage, symptoms)


def view(name: str = "t", found: Diagnosis | None = None, derived: Derived | None = None) -> EngineView:
    return engine_view(name, "m", "0", T, derived, found, "chat", "vllm-0")


def page(*views: EngineView, **options: object) -> str:
    return status_html(Snapshot(T, views), "/metrics", **options)  # type: ignore[arg-type]


def text_of(markup: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", markup[markup.index("<main") :])).split())


def evicting(**other: float | dict[str, float]) -> EngineView:
    """An engine of which half of the computed prompt tokens are computed again."""
    derived: Derived = {"recomputed_prompt_tokens_per_second": 500.0, "computed_prompt_tokens_per_second": 1000.0}
    return view(derived=derived | {"recomputed_time_ratio": 0.31, "cache_turnover_seconds": 9.0} | other)


def test_the_working_set_of_an_engine_that_computes_contexts_again():
    shown = text_of(
        page(
            evicting(
                prefix_cache_hit_ratio=0.2,
                prefix_cache_pool_hit_ratio={"1.5": 0.4, "2": 0.83, "8": 0.93},
                cache_eviction_age_min_seconds=4.0,
                cache_eviction_age_max_seconds=8.0,
            )
        )
    )
    assert "computed again 50% of the prompt tokens computed, 31% of the engine's time" in shown
    assert "prefix hits 20% now with a larger pool 40% at 1.5x, 83% at 2x, 93% at 8x" in shown
    assert "turnover 9.0 s, unused blocks are kept 4.0 s to 8.0 s" in shown
    assert "slower turnover" not in shown


@pytest.mark.parametrize("spoilt", ["recomputed_prompt_tokens_per_second", "computed_prompt_tokens_per_second"])
def test_nothing_is_shown_of_a_working_set_while_nothing_is_known_to_be_computed_again(spoilt: str):
    title = "<h4>Prefix cache</h4>"
    assert title in page(evicting())
    whole = evicting()
    assert title not in page(
        replace(whole, derived={name: value for name, value in whole.derived.items() if name != spoilt})
    )
    assert title not in page(evicting(recomputed_prompt_tokens_per_second=5.0))


def test_of_requests_that_fail_it_is_said_how_many_and_how():
    failing: Derived = {"failed_requests_per_second": {"server_error": 2.0}}
    shown = page(view("a", diagnosis(Cause.STUCK), failing), view("b", diagnosis(Cause.IDLE)))
    told = text_of(shown)
    assert "1 of 2 engines: stuck" in told
    assert "idle serves b m" in told
    assert "2 requests/s answered with an error (5xx)." in told
    assert shown.count('<details class="engine cause-stuck trouble') == 1


def with_history(views: Sequence[EngineView]) -> Snapshot:
    histories = Histories()
    for step in range(20):
        histories.add(T - 95 + 5 * step, views, [])
    return Snapshot(T, tuple(views), histories=histories)


def test_an_engine_in_trouble_is_shown_with_cause_stage_duration_and_evidence():
    shown = page(view(found=diagnosis(Cause.KV_CACHE_PRESSURE, 0.8123, Stage.COLLAPSED)))
    told = text_of(shown)
    assert "1 of 1 engine: KV cache pressure" in told
    assert "KV cache pressure collapsed waits t m for 2 min 31 s confidence 75% score 0.81" in told
    assert "admission blocked true 90% 50% prompts did not fit" in told
    assert "Other symptoms: 1 false, 1 not known" in told
    assert "kv saturated false 42% 90% cache used device oom not known not known: no logs are read" in told
    assert '<data value="0.8123">0.81</data>' in shown


def test_calm_engines_are_closed_and_troubled_ones_open():
    shown = page(view("bad", diagnosis(Cause.STUCK)), view("good", diagnosis()), view("idle", diagnosis(Cause.IDLE)))
    opened = dict(re.findall(r'data-target="(\w+)" data-default="(\w*)"', shown))
    assert opened == {"bad": "open", "good": "", "idle": ""}


def test_the_worst_engine_comes_first_and_pressure_that_builds_before_calm():
    views = [
        view("calm", diagnosis(score=0.1)),
        view("builds", diagnosis(score=0.0, stage=Stage.BUILDING)),
        view("unknown", diagnosis(Cause.UNKNOWN, None)),
        view("pressed", diagnosis(Cause.KV_CACHE_PRESSURE, 0.4)),
        view("worse", diagnosis(Cause.KV_CACHE_PRESSURE, 0.9)),
        view("undiagnosed"),
    ]
    order = [each.key.target for each in worst_first(views)]
    assert order == ["worse", "pressed", "undiagnosed", "unknown", "builds", "calm"]


@pytest.mark.parametrize(
    ("causes", "headline"),
    [
        ([], "no engine is configured or found"),
        ([Cause.HEALTHY], "1 engine: healthy"),
        ([Cause.HEALTHY, Cause.IDLE], "2 engines: 1 healthy, 1 idle"),
        ([Cause.HEALTHY, Cause.STUCK], "1 of 2 engines: stuck"),
        ([Cause.STUCK, Cause.STUCK, Cause.UNKNOWN], "3 of 3 engines: 2 stuck, 1 unknown"),
    ],
)
def test_the_headline_tells_what_is_wrong_and_of_how_many(causes, headline):
    shown = page(*(view(str(number), diagnosis(cause)) for number, cause in enumerate(causes)))
    assert f"<title>{headline} · kvpressure</title>" in shown


def test_pressure_that_builds_says_when_the_cache_will_be_full():
    found = diagnosis(Cause.HEALTHY, 0.2, Stage.BUILDING)
    for seconds, said in ((90.0, "in 1 min 30 s"), (0.0, "now")):
        shown = page(view(found=found, derived={"kv_exhaustion_seconds": seconds}))
        assert f"no room for a prompt {said}" in text_of(shown)


def test_detail_and_stage_are_two_words_of_a_list():
    found = replace(diagnosis(Cause.KV_CACHE_PRESSURE, 0.8, Stage.COLLAPSED), detail="admission")
    assert "KV cache pressure admission, collapsed" in text_of(page(view(found=found)))


def test_an_engine_without_a_diagnosis_says_so():
    told = text_of(page(view()))
    assert "unknown t m" in told
    assert "No diagnosis has been made yet." in told
    assert "running not known" in told


def test_actions_are_listed_in_order_with_the_first_one_open():
    shown = page(view(found=diagnosis(Cause.STUCK)), advise=lambda _: [fake_action(), fake_action(title="Verify")])
    key = ident(("t", "m", "0"))
    assert re.findall(rf'<details id="{key}-(\d)" data-default="(\w*)"', shown) == [("1", "open"), ("2", "")]
    told = text_of(shown)
    assert "Cut max_num_seqs 64 → 32 16 fit kubectl -n chat patch kubectl -n chat rollout status" in told
    assert "Cost: a restart Verify: score < 0.2 within 2 minutes" in told


def test_a_runbook_is_linked_only_where_one_is_known():
    known = {Cause.STUCK: "Kv Stuck/x"}
    shown = html.unescape(page(view("a&b", diagnosis(Cause.STUCK)), runbooks=known))
    assert 'href="/runbooks/Kv%20Stuck%2Fx?namespace=chat&pod=vllm-0&target=a%26b&model=m&engine=0"' in shown
    assert "/runbooks/" not in page(view(found=diagnosis()), runbooks=known)


def test_nothing_from_outside_becomes_markup():
    found = replace(diagnosis(Cause.STUCK), symptoms={EVIL: Evidence(EVIL, True, EVIL, 1.0, 2.0, EVIL)})
    evil = engine_view(EVIL, EVIL, EVIL, T, {}, found, EVIL, EVIL)
    action = Action(EVIL, EVIL, EVIL, EVIL, EVIL, EVIL, (EVIL,), (EVIL,))
    source = SourceHealth(EVIL, EVIL, False, T, error=EVIL)
    snapshot = replace(with_history([evil]), sources=(source,))
    shown = status_html(snapshot, "/metrics", lambda _: [action], {Cause.STUCK: EVIL})
    assert shown.count("<script") == 1
    assert "<img" not in shown
    assert html.escape(EVIL, quote=True).replace("&#x27;", "&#39;").replace("&quot;", "&#34;") in shown


def test_the_policy_allows_exactly_the_style_and_script_of_the_page():
    policy = content_security_policy()
    assert len(re.findall("'sha256-[A-Za-z0-9+/]{43}='", policy)) == 2
    assert "unsafe" not in policy
    assert not re.search(r'\sstyle="|\son\w+="', page(view(found=diagnosis(Cause.STUCK))))


def test_a_node_with_dozens_of_engines_draws_charts_for_the_worst_and_the_one_asked_for():
    views = [view(f"t{number:02}", diagnosis(score=0.5 - number / 100)) for number in range(CHARTED_ENGINES + 3)]
    snapshot, last = with_history(views), ident(views[-1].key)
    assert status_html(snapshot, "/metrics").count('class="strip"') == CHARTED_ENGINES
    assert f'href="/?engine={last}#{last}"' in status_html(snapshot, "/metrics")
    asked = status_html(snapshot, "/metrics", selected=last)
    assert asked.count('class="strip"') == CHARTED_ENGINES + 1
    assert re.search(rf'id="{last}"\s+data-target="t14" data-default="open"', asked)


def test_ids_are_unique_on_the_page():
    views = [view(name, diagnosis(Cause.STUCK)) for name in ("a", "b")]
    shown = status_html(with_history(views), "/metrics", lambda _: [fake_action(), fake_action()])
    found = re.findall(r'\sid="([^"]+)"', shown)
    assert len(found) == len(set(found)) > 10


def test_sources_are_folded_while_all_are_up():
    up, down = SourceHealth("engine", "t", True, T), SourceHealth("nvml", "", False, T, error="no driver")
    assert '<details class="more" id="source-list" data-default="">' in status_html(Snapshot(T, sources=(up,)), "/m")
    shown = status_html(Snapshot(T, sources=(up, down)), "/m")
    assert '<details class="more" id="source-list" data-default="open" open>' in shown
    assert "1 of 2 sources down" in shown


def test_the_json_twin_says_the_same_and_null_for_what_is_not_known():
    found = diagnosis(Cause.KV_CACHE_PRESSURE, None, Stage.COLLAPSED)
    derived: Derived = {
        "requests_running": 3.0,
        "kv_exhaustion_seconds": math.inf,
        "latency_seconds": {"e2e": {"0.95": 2.5, "0.99": math.nan}, "ttft": {"0.95": math.nan}},
        "effective_batch_size": HistogramSample((1.0, math.inf), (1.0, 2.0), 3.0),
    }
    document = diagnosis_json(Snapshot(T, (view(found=found, derived=derived),)), lambda _: [fake_action()])
    check("diagnosis", document)
    (engine,) = json.loads(json.dumps(document, allow_nan=False))["engines"]
    assert engine["derived"] == {"requests_running": 3.0, "latency_seconds": {"e2e": {"0.95": 2.5}}}
    assert (engine["cause"], engine["stage"], engine["score"], engine["since"]) == (
        "kv_cache_pressure",
        "collapsed",
        None,
        T - 151,
    )
    assert engine["symptoms"]["device_oom"] == {
        "state": None,
        "value": None,
        "threshold": None,
        "unit": "",
        "text": "not known: no logs are read",
    }
    assert engine["actions"][0]["commands"] == ["kubectl -n chat patch", "kubectl -n chat rollout status"]


def test_without_a_diagnosis_every_key_is_there_and_null():
    with_one, without = (
        diagnosis_json(Snapshot(T, (view(found=found),)))["engines"][0]  # type: ignore[index]
        for found in (diagnosis(), None)
    )
    assert set(with_one) == set(without)
    assert (without["cause"], without["score"], without["symptoms"]) == (None, None, {})


def test_every_key_of_the_json_is_documented():
    def keys(value: object) -> set[str]:
        if isinstance(value, list):
            return set().union(*map(keys, value))
        if isinstance(value, dict):
            return set(value).union(
                *(keys(below) for name, below in value.items() if name not in {"derived", "limits"})
            )
        return set()

    document = diagnosis_json(collapsed(), lambda _: [fake_action()])
    check("diagnosis", document)
    symptoms = {name for engine in document["engines"] for name in engine["symptoms"]}  # type: ignore[attr-defined]
    documented = set(re.findall(r"`(\w+)`", (DOCS / "api.md").read_text()))
    assert keys(document) - symptoms - documented == set()
    assert len(symptoms) == 15


def test_numbers_read_as_the_examples_beside_them_say():
    for module, least in ((wording, 6), (values, 2)):
        tried = doctest.testmod(module)
        assert (tried.attempted >= least, tried.failed) == (True, 0)


def test_a_gpu_library_that_is_not_on_the_machine_is_not_present_and_no_fault():
    absent = SourceHealth("nvml", "", False, 1.0, error="no library", reason="library_not_found")
    broken = SourceHealth("amdsmi", "", False, 1.0, error="no driver", reason="driver_not_loaded")
    calm, alarmed = (replace(Snapshot(t=1.0), sources=sources) for sources in ((absent,), (absent, broken)))
    page = status_html(calm, "/metrics")
    assert ("not present" in page, 'class="bad"' in page, "down" in page.partition("<h2 id")[2]) == (True, False, False)
    assert "1 of 2 sources down" in status_html(alarmed, "/metrics")
    told = targets_json(alarmed)["sources"]
    assert [(one["up"], one["present"]) for one in told] == [(False, False), (False, True)]


def test_what_is_switched_off_is_told_with_the_sources_on_either_page_and_to_programs():
    snapshot = Snapshot(T, environment=Environment(hints=(f"set x=true {EVIL}",)))
    escaped = EVIL.replace("<", "&lt;").replace(">", "&gt;").replace("'", "&#39;").replace('"', "&#34;")
    for page in (status_html(snapshot, "/metrics"), targets_html(snapshot, "/metrics")):
        assert f'<li class="muted">set x=true {escaped}</li>' in page[page.index("Sources") :]
    assert targets_json(snapshot)["hints"] == [f"set x=true {EVIL}"]


# What a step says of now is what the card says beside it.


THRESHOLDS = load_thresholds()
RECORDINGS = ("lab/kv-collapse-0.33.0.jsonl.xz", "traces/preemption-thrash.jsonl.xz", "lab/cap-prefix-0.33.0.jsonl.xz")
FACT = r'<span class="unit">{}</span> <data value="([^"]+)">'


def advise(view: EngineView, standing: Change) -> tuple[Action, ...]:
    about = view.diagnosis, view.derived, view.limits, THRESHOLDS, Place(runtime="vllm")
    return advise_on(Case(*about, view.observed, (), standing))


def printed(value: float) -> float:
    return float(f"{value:.2g}") if value < 100 else round(value)


@pytest.mark.parametrize("recording", RECORDINGS)
def test_no_step_says_another_number_of_now_than_the_card_and_none_makes_it_worse(recording: str) -> None:
    view = pressed_view(recording)
    actions = Advised().advice(view, THRESHOLDS, 1, advise)
    page = html.unescape(status_html(Snapshot(view.t, engines=(view,)), "/metrics", lambda _: actions))
    card = {name: float(re.findall(FACT.format(name), page)[0]) for name in ("waiting", "tokens/s")}
    told = re.findall(r"<b>Expected:</b> ([^<]+)</p>", page)
    assert told
    for text in told:
        for name, now in card.items():
            before, after = re.findall(rf"{re.escape(name)} ([\d.,]+) -> (?:up to )?([\d.,]+)", text)[0]
            assert float(before.replace(",", "")) == printed(now), text
            if name == "tokens/s":
                assert float(after.replace(",", "")) >= printed(now), text
    assert page.index("Now, without a restart") < page.index("After the incident")
