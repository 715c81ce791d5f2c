"""Who comes again: sessions that grow turn by turn, and recorded requests."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.lab import trace
from tests.lab.clients import Clients
from tests.lab.clock import Clock
from tests.lab.messages import SentRequest
from tests.lab.regime import Flags, Load, Regime
from tests.lab.sessions import ANSWER, Session, thinking
from tests.lab.trace import EXCERPT, TraceMissingError, chosen, read
from tests.lab.world import World

CHAT = Load(
    clients=5, turns=(3, 6), prompt=(40, 80), prefix=20, prefix_groups=2, words=(5, 9), output=(3, 7), think=(1.0, 30.0)
)


# -- one session


def test_a_turn_says_all_that_was_said_before() -> None:
    session, number = Session(CHAT, random.Random(1)), 0
    said: list[int] = []
    while not session.over:
        number += 1
        prompt = session.prompt(number)
        assert prompt[: len(said)] == said
        assert len(prompt) > len(said)
        session.heard(prompt, 4)
        said = [*prompt, *[ANSWER] * 4]
        assert session.said == said
    assert 3 <= number <= 6


def test_sessions_of_a_group_have_its_system_prompt_in_common_and_nothing_else() -> None:
    rng = random.Random(1)
    prompts = [Session(CHAT, rng).prompt(number) for number in range(30)]
    heads = {tuple(prompt[:20]) for prompt in prompts}
    assert len(heads) == 2
    assert len({tuple(prompt[:21]) for prompt in prompts}) == 30


def test_a_session_ends_before_its_prompt_could_be_too_long() -> None:
    load = Load(turns=(99, 99), prompt=(40, 40), words=(10, 10), output=(5, 5), longest=100)
    session, lengths = Session(load, random.Random(1)), []
    while not session.over:
        lengths.append(len(session.prompt(len(lengths))))
        session.heard(session.prompt(len(lengths)), 5)
    assert lengths == [40, 55, 70, 85, 100]


def test_thinking_lies_between_its_bounds_and_is_mostly_short() -> None:
    rng = random.Random(1)
    times = sorted(thinking(CHAT, rng) for _ in range(1000))
    assert 1 <= times[0] < times[-1] <= 30
    assert times[500] == pytest.approx(30**0.5, rel=0.15)
    assert 0.05 <= thinking(Load(think_seconds=0.1), rng) <= 0.15


# -- clients


class Answers:
    """An API that answers every request in full after a second."""

    def __init__(self) -> None:
        self.world: World
        self.clients: Clients
        self.asked: list[SentRequest] = []

    def receive(self, asked: SentRequest) -> None:
        self.asked.append(asked)
        self.world.events.at(self.world.clock.now + 1, lambda: self._answer(asked))

    def _answer(self, asked: SentRequest) -> None:
        client, _ = self.world.owners.pop(asked.name)
        self.clients.answered(client, asked, asked.output)


def played(load: Load, seconds: int = 300, **flags: Any) -> list[SentRequest]:
    """What a load sends."""
    regime = Regime(name="a", family="a", about="", expect="", seconds=seconds, flags=Flags(**flags), load=(load,))
    clock, api = Clock(), Answers()
    api.world = World(regime, "0.33.0", clock)
    api.clients = Clients(api.world, None, api)  # type: ignore[arg-type]
    api.clients.enter(0, load)
    api.world.events.play(api.world.begin + seconds, lambda t: setattr(clock, "now", max(t, clock.now)))
    return api.asked


def continues(before: SentRequest, after: SentRequest) -> bool:
    said = before.tokens + [ANSWER] * before.output
    return after.tokens[: len(said)] == said


def test_clients_go_on_with_their_sessions_and_begin_new_ones() -> None:
    asked = played(CHAT)
    turns = [sum(continues(before, after) for before in asked[:index]) for index, after in enumerate(asked)]
    # A turn continues every earlier one of its session; the first sessions had begun before anybody looked.
    assert set(turns) == {0, 1, 2, 3, 4, 5}
    assert turns.count(0) > 5
    gaps = [
        after.arrived - before.arrived
        for index, after in enumerate(asked)
        for before in asked[:index]
        if continues(before, after) and sum(continues(other, after) for other in asked[asked.index(before) :]) == 1
    ]
    assert len(gaps) > 20
    assert all(2 <= gap <= 31 for gap in gaps)


def test_the_same_seed_gives_the_same_requests() -> None:
    assert [one.tokens for one in played(CHAT)] == [one.tokens for one in played(CHAT)]


def test_a_router_that_scatters_sends_one_replica_a_part_of_each_session() -> None:
    whole = played(CHAT)
    load = Load(**{**{name: getattr(CHAT, name) for name in CHAT.__slots__}, "replicas": 4})
    part = played(load)
    assert 0.1 < len(part) / len(whole) < 0.5
    assert not any(one.sibling for one in whole)
    later = [one for one in part if one.sibling]
    assert later
    assert all(20 < one.sibling < len(one.tokens) for one in later)


# -- recorded requests


def test_the_excerpt_is_read() -> None:
    rows = read(EXCERPT)
    assert len(rows) == len(EXCERPT.read_text().splitlines())
    first = json.loads(EXCERPT.read_text().splitlines()[0])
    assert (rows[0].t, rows[0].length, rows[0].output) == (0.0, first["input_length"], first["output_length"])
    assert [row.t for row in rows] == sorted(row.t for row in rows)


def test_equal_ids_are_equal_tokens_and_no_others_are() -> None:
    rows = read(EXCERPT)[:12]
    for one in rows:
        assert len(one.tokens) == one.length
        for other in rows:
            common = sum(1 for _ in iterate_common(one.ids, other.ids))
            shared = sum(1 for _ in iterate_common(one.tokens, other.tokens))
            assert shared == min(common * 512, one.length, other.length)


def iterate_common(one: Any, other: Any) -> Any:
    for left, right in zip(one, other, strict=False):
        if left != right:
            return
        yield left


def test_whole_sessions_are_chosen_and_a_larger_share_has_those_of_a_smaller_one() -> None:
    rows = read(EXCERPT)
    some, more = chosen(rows, 0.3, 1), chosen(rows, 0.7, 1)
    assert 0 < len(some) < len(more) < len(rows)
    assert set(some) <= set(more)
    sessions = {row.session for row in more}
    assert more == [row for row in rows if row.session in sessions]
    assert chosen(rows, 1.0, 1) == rows
    assert chosen(rows, 0.3, 2) != some


def test_requests_come_when_they_were_recorded_if_the_engine_would_take_them() -> None:
    load = Load(trace=str(EXCERPT.relative_to(trace.ROOT)))
    rows = [row for row in read(EXCERPT) if row.t < 300 and row.length + row.output <= 4096]
    asked = played(load, max_model_len=4096)
    assert [(round(one.arrived - 1_800_000_000, 3), one.tokens, one.output) for one in asked] == [
        (row.t, row.tokens, row.output) for row in rows
    ]
    assert 0 < len(rows) < len(read(EXCERPT))


def test_where_the_trace_is_not_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "ROOT", tmp_path / "a" / "b")
    monkeypatch.setattr(trace, "WHOLE", Path("nowhere") / "a-trace.jsonl.xz")
    with pytest.raises(TraceMissingError, match=r"a-trace\.jsonl\.xz"):
        trace.whole()
    (tmp_path / "nowhere").mkdir()
    (tmp_path / "nowhere" / "a-trace.jsonl.xz").touch()
    assert trace.whole() == tmp_path / "nowhere" / "a-trace.jsonl.xz"
