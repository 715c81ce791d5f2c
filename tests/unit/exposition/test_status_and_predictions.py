"""What a step says of now is what the card says beside it."""

from __future__ import annotations

import html
import re

import pytest

from kvpressure.advice.advise import Case, Place, advise_on
from kvpressure.advice.recommendation import Change
from kvpressure.config.thresholds import load_thresholds
from kvpressure.daemon.recommended import Advised
from kvpressure.exposition import Snapshot
from kvpressure.exposition.status import status_html
from kvpressure.model.action import Action
from kvpressure.model.view import EngineView
from tests.support.observed import pressed_view

pytestmark = pytest.mark.recorded

THRESHOLDS = load_thresholds()
RECORDINGS = ("lab/kv-collapse-0.33.0.jsonl.xz", "traces/preemption-thrash.jsonl.xz", "lab/cap-prefix-0.33.0.jsonl.xz")
FACT = r'<span class="unit">{}</span> <data value="([^"]+)">'


def advise(view: EngineView, standing: Change) -> tuple[Action, ...]:
    assert view.diagnosis is not None
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
