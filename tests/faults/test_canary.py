"""Engines that are asked for one token: what each answer is evidence of, and that nobody is asked who must not be."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from kvpressure.exposition import text as exposition
from kvpressure.exposition.status import diagnosis_json, status_html
from kvpressure.model.verdict import Cause
from tests.support.canary_engine import COMPLETION, ON, UNANSWERED_500, CanaryEngine, Watched, json_reply, watched
from tests.support.servers import Behaviour, Request, answer, error, floods, hangs, hangs_after_headers, redirect
from tests.support.virtual_time import run

Story = Callable[[Watched], Awaitable[None]]


def told(
    engine: CanaryEngine, story: Story, canary: object = ON, thresholds: str = "", **target: object
) -> CanaryEngine:
    """Live through a story on virtual time."""

    async def main() -> CanaryEngine:
        async with watched(engine, canary, thresholds, **target) as seen:  # type: ignore[arg-type]
            await story(seen)
        return engine

    return run(main())


async def work(seen: Watched, seconds: float = 40.0) -> None:
    """Serve for a while."""
    engine = seen.engine
    engine.works, engine.running = True, 4
    await asyncio.sleep(seconds)
    engine.works = False


async def lose_queue(seen: Watched, seconds: float = 40.0) -> None:
    """Serve for a while, then show an idle page."""
    await work(seen, seconds)
    seen.engine.running = 0


@pytest.mark.fault(
    "an engine hangs and loses its queue: its page is idle, its clients wait",
    "with `engines.canary` it is reported as stuck 45 s and one deadline later, with the reason, and recovers with "
    "the next answer",
)
def test_a_wedge_with_an_idle_page_is_stuck_and_recovers_when_answered():
    async def story(seen: Watched) -> None:
        seen.engine.api = hangs
        await lose_queue(seen)
        causes = await seen.causes(75)
        assert causes[-1] is Cause.STUCK
        assert seen.evidence.state is True
        assert "a request of one token got no answer in 30 s" in seen.evidence.text
        assert seen.counts == {"timeout": 1.0}
        assert seen.view.diagnosis is not None
        assert seen.view.diagnosis.confidence > 0.5
        assert await seen.causes(60) == [Cause.STUCK] * 60
        seen.engine.api = None
        await asyncio.sleep(90)
        assert seen.cause is Cause.IDLE
        assert seen.evidence.state is False
        assert seen.counts["answered"] >= 1

    engine = told(CanaryEngine(), story)
    assert engine.posts()[0] == {"model": "m", "prompt": "a", "max_tokens": 1, "temperature": 0, "stream": False}


@pytest.mark.fault(
    "an idle engine gets a one-token request once a minute",
    "its verdict stays idle, and the token does not count as demand",
)
def test_an_idle_engine_stays_idle_whatever_is_asked_of_it():
    async def story(seen: Watched) -> None:
        await lose_queue(seen)
        await asyncio.sleep(25)
        assert await seen.causes(400) == [Cause.IDLE] * 400
        assert "a request of one token was answered in" in seen.evidence.text
        (engine,) = seen.daemon._pipeline._engines.values()
        assert engine.past.demand == 0.0

    times = told(CanaryEngine(), story).times
    assert len(times) == 7
    assert all(59.0 <= after - before <= 62.0 for before, after in itertools.pairwise(times))


@pytest.mark.fault(
    "the metrics of an engine do not change, and it answers a one-token request",
    "it is not stuck: the verdict is unknown, with the detail that its statistics are late",
)
def test_a_frozen_page_whose_engine_answers_is_never_stuck():
    async def story(seen: Watched) -> None:
        seen.engine.api = json_reply(COMPLETION)  # its page shows nothing of it
        await work(seen)
        causes = await seen.causes(200)
        assert Cause.STUCK not in causes
        assert set(causes[40:]) == {Cause.UNKNOWN}
        assert "the engine works, its statistics are late" in seen.evidence.text

    told(CanaryEngine(), story)


def test_an_answer_from_before_the_page_stood_still_is_no_evidence():
    async def story(seen: Watched) -> None:
        await lose_queue(seen)
        await asyncio.sleep(35)  # asked and answered
        assert seen.counts == {"answered": 1.0}
        seen.engine.api = hangs
        await work(seen, 5.0)
        causes = await seen.causes(45)
        assert causes[-1] is Cause.STUCK
        assert await seen.causes(100) == [Cause.STUCK] * 100

    told(CanaryEngine(), story)


ANSWERS: dict[str, tuple[Behaviour, str, str]] = {
    "503": (error("503 Service Unavailable"), "refused", "turned a request of one token away (503)"),
    "429": (error("429 Too Many Requests"), "refused", "turned a request of one token away (429)"),
    "500": (error(), "error", "answered with 500"),
    "401": (error("401 Unauthorized"), "not_possible", "requires an API key (401)"),
    "404": (error("404 Not Found"), "not_possible", "/v1/completions answered with 404"),
    "400": (error("400 Bad Request"), "not_possible", "/v1/completions answered with 400"),
    "a redirect": (redirect("http://127.0.0.1:1/v1"), "not_possible", "redirects are not followed"),
    "a web page": (json_reply("<!doctype html>"), "not_possible", "something else than a token"),
    "empty JSON": (json_reply("{}"), "not_possible", "something else than a token"),
    "deep JSON": (json_reply("[" * 60_000), "not_possible", "something else than a token"),
    "a flood": (floods(), "error", "a request of one token failed: the answer is longer than 64 KiB"),
    "a slow body": (hangs_after_headers, "timeout", "only 0 bytes"),
}


@pytest.mark.fault(
    "an engine answers a one-token request with a refusal, an error, a redirect, a flood or something else",
    "it is reported and counted, nothing is followed or kept, and no such answer makes an idle engine stuck",
)
@pytest.mark.parametrize(("behaviour", "result", "said"), ANSWERS.values(), ids=ANSWERS)
def test_what_is_no_token_and_no_silence_is_no_evidence(behaviour: Behaviour, result: str, said: str):
    async def story(seen: Watched) -> None:
        seen.engine.api = behaviour
        await lose_queue(seen)
        causes = await seen.causes(95)
        assert set(causes[25:]) == {Cause.IDLE}
        assert seen.evidence.state is None
        assert said in seen.evidence.text
        assert set(seen.counts) == {result}

    engine = told(CanaryEngine(), story)
    assert not [request for request in engine.asked if request.path not in
                ("/v1/completions", "/v1/embeddings", "/v1/models")]  # fmt: skip


@pytest.mark.fault("a server whose engine process has died answers a one-token request with 500", "the engine is stuck")
def test_a_dead_engine_behind_a_living_server_is_stuck():
    async def story(seen: Watched) -> None:
        seen.engine.api = json_reply(UNANSWERED_500, "500 Internal Server Error")
        await lose_queue(seen)
        assert (await seen.causes(60))[-1] is Cause.STUCK
        assert "answered with 500: the engine process is dead" in seen.evidence.text
        assert set(seen.counts) == {"error"}

    told(CanaryEngine(), story)


def test_a_server_that_takes_no_such_request_is_told_of_once_and_hardly_asked_again(capsys: pytest.CaptureFixture[str]):
    async def story(seen: Watched) -> None:
        seen.engine.api = error("404 Not Found")
        await lose_queue(seen)
        await asyncio.sleep(590)

    engine = told(CanaryEngine(), story)
    assert len(engine.posts()) == 2  # completions and embeddings
    assert capsys.readouterr().out.count("not_possible") == 1


def test_a_pooling_model_is_asked_for_an_embedding_and_at_once_the_next_time():
    async def pooling(request: Request, writer: asyncio.StreamWriter) -> None:
        known = request.path == "/v1/embeddings"
        writer.write(answer(b'{"data": [{"embedding": [0.1]}]}') if known else answer(b"{}", "400 Bad Request"))

    async def story(seen: Watched) -> None:
        seen.engine.api = pooling
        await lose_queue(seen)
        await asyncio.sleep(150)
        assert seen.evidence.state is False

    engine = told(CanaryEngine(), story)
    assert [request.path for request in engine.asked[:3]] == ["/v1/completions", "/v1/embeddings", "/v1/embeddings"]
    assert engine.posts()[1] == {"model": "m", "input": "a"}


@pytest.mark.parametrize("label", ["", "called-otherwise"])
def test_the_model_is_the_pages_or_the_first_that_the_server_lists(label: str):
    async def api(request: Request, writer: asyncio.StreamWriter) -> None:
        if request.path == "/v1/models":
            writer.write(answer(b'{"data": [{"id": "served"}, {"id": "adapter"}]}'))
        elif json.loads(request.body)["model"] != "served":
            writer.write(answer(b"{}", "404 Not Found"))
        else:
            writer.write(answer(COMPLETION.encode()))

    async def story(seen: Watched) -> None:
        seen.engine.api = api
        await lose_queue(seen)
        await asyncio.sleep(100)
        assert seen.counts == {"answered": 2.0}

    engine = told(CanaryEngine(model=label), story)
    assert [one["model"] for one in engine.posts()] == ([label, "served", "served"] if label else ["served", "served"])


PAUSES = {
    "asleep": 'vllm:engine_sleep_state{engine="0",model_name="m",sleep_state="awake"} 0',
    "paused": 'http_requests_total{handler="/pause",method="POST",status="2xx"} 1',
}


@pytest.mark.fault("an engine is asleep or paused", "it gets no one-token request, and is not judged by an earlier one")
@pytest.mark.parametrize("more", PAUSES.values(), ids=PAUSES)
def test_who_sleeps_or_is_paused_is_never_asked(more: str):
    async def story(seen: Watched) -> None:
        await lose_queue(seen)
        seen.engine.more = more
        await asyncio.sleep(300)
        assert seen.cause is Cause.PAUSED
        assert seen.engine.asked == []

    told(CanaryEngine(), story)


def test_a_request_under_way_when_it_falls_asleep_says_nothing():
    async def story(seen: Watched) -> None:
        seen.engine.api = hangs
        await lose_queue(seen)
        await asyncio.sleep(40)
        assert len(seen.engine.asked) == 1
        seen.engine.more = PAUSES["asleep"]
        await asyncio.sleep(40)
        seen.engine.more = ""
        assert Cause.STUCK not in await seen.causes(15)
        assert seen.evidence.state is None

    told(CanaryEngine(), story)


@pytest.mark.fault("the settings do not contain `engines.canary`", "engines get only requests for their metrics")
@pytest.mark.parametrize("canary", [None, {}, {"enabled": False, "idle_seconds": 10}])
@pytest.mark.parametrize("running", [0, 4])
def test_off_by_default_nothing_at_all_is_sent(canary: object, running: int):
    async def story(seen: Watched) -> None:
        await work(seen)
        seen.engine.running = running
        await asyncio.sleep(300)
        assert {(request.method, request.path.rstrip("/")) for request in seen.server.requests} == {("GET", "/metrics")}
        assert seen.view.diagnosis is not None
        assert "canary_unanswered" not in seen.view.diagnosis.symptoms
        assert "canary_requests_total" not in seen.view.derived

    told(CanaryEngine(), story, canary)


def test_who_works_or_has_had_no_traffic_is_not_asked():
    async def story(seen: Watched) -> None:
        await asyncio.sleep(200)  # a server that has served nobody yet
        await work(seen, 200.0)
        assert seen.engine.asked == []

    told(CanaryEngine(tokens=0.0, finished=0.0), story)


def test_idle_since_before_the_exporter_began_counts_as_idle_after_traffic():
    async def story(seen: Watched) -> None:
        seen.engine.api = hangs
        await asyncio.sleep(75)
        assert seen.cause is Cause.STUCK

    told(CanaryEngine(), story)


def test_work_that_comes_while_the_answer_is_awaited_takes_it_back():
    async def story(seen: Watched) -> None:
        seen.engine.api = hangs
        await lose_queue(seen)
        await asyncio.sleep(45)  # asked
        seen.engine.works, seen.engine.running = True, 200
        assert Cause.STUCK not in await seen.causes(60)
        assert seen.counts == {"timeout": 1.0}
        assert seen.evidence.state is None
        assert "tokens have come since" in seen.evidence.text

    told(CanaryEngine(), story)


@pytest.mark.fault(
    "an engine refuses connections", "its source is down, as without a canary, and it gets no one-token request"
)
def test_a_server_that_is_gone_is_down_and_not_asked():
    async def story(seen: Watched) -> None:
        await lose_queue(seen)
        await asyncio.sleep(27)
        await seen.server.stop()
        await asyncio.sleep(120)
        assert seen.engine.asked == []
        snapshot = seen.daemon.snapshot()
        assert snapshot.engines == ()
        assert [source.reason for source in snapshot.sources if source.source == "engine"] == ["refused"]
        (view,) = snapshot.silent
        assert view.diagnosis is not None
        assert view.diagnosis.cause is Cause.IDLE

    told(CanaryEngine(), story)


@pytest.mark.fault("the exporter gets SIGTERM while a one-token request is in progress", "it ends at once")
def test_it_ends_at_once_while_an_answer_is_awaited():
    async def story(seen: Watched) -> None:
        seen.engine.api = hangs
        await lose_queue(seen)
        await asyncio.sleep(40)
        assert seen.under_way == 1
        began = asyncio.get_running_loop().time()
        seen.running.cancel()
        await asyncio.gather(seen.running, return_exceptions=True)
        assert asyncio.get_running_loop().time() - began < 0.5
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("canary")]

    told(CanaryEngine(), story)


async def reloaded(seen: Watched, **canary: object) -> None:
    settings = seen.daemon.settings
    engines = settings.engines.model_copy(update={"canary": settings.engines.canary.model_copy(update=canary)})
    new = settings.model_copy(update={"engines": engines})
    seen.daemon._read_settings = lambda: new
    seen.daemon.request_reload()
    await asyncio.sleep(2.0)


def test_what_came_of_it_is_on_every_page_beside_the_verdict():
    async def story(seen: Watched) -> None:
        seen.engine.api = hangs
        await lose_queue(seen)
        await asyncio.sleep(75)
        snapshot, text = seen.daemon.snapshot(), "request of one token got no answer in 30 s"
        page = exposition.render(snapshot, openmetrics=False).decode()
        labels = 'engine="0",model_name="m",namespace="",pod=""'
        assert f'kvpressure_canary_requests_total{{{labels},result="timeout",target="engine"}} 1.0' in page
        assert f'kvpressure_canary_requests_total{{{labels},result="answered",target="engine"}} 0.0' in page
        assert f'kvpressure_symptom{{{labels},symptom="canary_unanswered",target="engine"}} 1.0' in page
        assert f'kvpressure_bottleneck_info{{cause="stuck",detail="unanswered",{labels},target="engine"}} 1.0' in page
        (engine,) = diagnosis_json(snapshot)["engines"]  # type: ignore[misc]
        assert text in engine["grounds"]
        assert engine["symptoms"]["canary_unanswered"]["state"] is True
        assert engine["derived"]["canary_requests_total"]["timeout"] == 1.0
        html = status_html(snapshot, "/metrics", seen.daemon.advice)
        assert text in html
        assert "A request of one token got no answer" in html

    told(CanaryEngine(), story)


@pytest.mark.fault(
    "an engine takes longer for one token than the time between two requests",
    "never more than one is in progress to it",
)
def test_never_more_than_one_is_under_way():
    async def story(seen: Watched) -> None:
        seen.engine.api = hangs
        for _ in range(250):
            await asyncio.sleep(1.0)
            assert seen.under_way <= 1

    canary = {**ON, "interval_seconds": 30, "idle_seconds": 10}
    times = told(CanaryEngine(), story, canary, thresholds="stuck_unanswered_min_seconds: 100").times
    assert len(times) == 3
    assert min(after - before for before, after in itertools.pairwise(times)) >= 100


@pytest.mark.fault(
    "a page always shows other engines that all seem to have lost their queue",
    "at most eight one-token requests are in progress to its target, and none of the engines is kept",
)
def test_a_page_that_invents_engines_is_asked_within_bounds_and_nothing_of_it_is_kept():
    async def story(seen: Watched) -> None:
        seen.engine.api = hangs
        for generation in range(3):
            seen.engine.ranks = tuple(f"{generation}{number:03}" for number in range(40))
            for _ in range(45):
                await asyncio.sleep(1.0)
                assert seen.under_way <= 8
            assert seen.under_way == 8
        seen.engine.ranks = ("0",)
        await asyncio.sleep(100)
        assert len(seen.daemon._canaries._sources) == len(seen.daemon._canaries._logged) == 1

    told(CanaryEngine(), story)


def test_switched_off_by_a_reload_it_ends_and_nothing_is_left_of_it():
    async def story(seen: Watched) -> None:
        seen.engine.api = hangs
        await lose_queue(seen)
        await asyncio.sleep(80)
        assert seen.cause is Cause.STUCK
        await asyncio.sleep(20)
        assert seen.under_way == 1
        await reloaded(seen, enabled=False)
        await asyncio.sleep(20)
        assert seen.under_way == 0
        assert seen.cause is Cause.IDLE
        assert "canary_requests_total" not in seen.view.derived
        asked = len(seen.engine.asked)
        await asyncio.sleep(200)
        assert len(seen.engine.asked) == asked
        await reloaded(seen, enabled=True)
        await asyncio.sleep(75)
        assert seen.cause is Cause.STUCK

    told(CanaryEngine(), story)


def test_one_rank_of_several_is_asked_by_its_header():
    async def story(seen: Watched) -> None:
        await asyncio.sleep(36)

    engine = told(CanaryEngine(ranks=("0", "1")), story)
    assert {request.headers.get("x-data-parallel-rank") for request in engine.asked} == {"0", "1"}
    alone = told(CanaryEngine(), story)
    assert [request.headers.get("x-data-parallel-rank") for request in alone.asked] == [None]


@pytest.mark.fault(
    "an API key is configured for one-token requests",
    "it replaces the target's own credentials, is sent to configured targets, and never to a discovered pod",
)
def test_which_credentials_go_along(tmp_path: Path):
    key, own = tmp_path / "key", tmp_path / "own"
    key.write_text("sk-canary\n")
    own.write_text("own-token\n")

    async def story(seen: Watched) -> None:
        await asyncio.sleep(36)

    engine = told(CanaryEngine(), story, {**ON, "api_key_file": str(key)}, bearer_token_file=str(own))
    assert [request.headers["authorization"] for request in engine.asked] == ["Bearer sk-canary"]
    engine = told(CanaryEngine(), story, ON, bearer_token_file=str(own))
    assert [request.headers["authorization"] for request in engine.asked] == ["Bearer own-token"]


def test_a_server_below_a_prefix_is_asked_there():
    async def story(seen: Watched) -> None:
        await asyncio.sleep(36)

    engine = told(CanaryEngine(prefix="/llama"), story, path="/llama/metrics")
    assert [request.path for request in engine.asked] == ["/llama/v1/completions"]
