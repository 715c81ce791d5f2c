"""What the series of a target say: that it is listed, how to reach it, and how its last poll ended."""

from dataclasses import replace
from http import HTTPStatus

import pytest

from kvpressure.config.target import Target
from kvpressure.exposition import Snapshot, text
from kvpressure.exposition.families import address_of, target_values
from kvpressure.model.samples import SourceHealth
from kvpressure.model.target_status import STATUSES, Answering, http_reason, status_of
from kvpressure.model.verdict import Cause, Diagnosis, Stage
from kvpressure.model.view import Unreachable
from tests.support.views import engine_view

MAX_TEXT = 60


def health(reason: str, *, up: bool = False) -> SourceHealth:
    return SourceHealth("engine", "chat", up, 0.0, reason=reason, error="as the server <said> it")


@pytest.mark.parametrize(
    ("target", "address"),
    [
        (Target("demo", "http://127.0.0.1:41234"), "127.0.0.1:41234"),
        (Target("chat", "http://gpu-1"), "gpu-1:80"),
        (Target("gpu-1:8000", "http://gpu-1:8000"), "gpu-1:8000"),
        (Target("chat", "https://gpu-1:8443"), "https://gpu-1:8443"),
        (Target("gpu-1:8000/llama", "http://gpu-1:8000", "/llama"), "http://gpu-1:8000/llama"),
        (Target("prod/llm-0:8000", "http://10.0.0.9:8000", namespace="prod", pod="llm-0"), "-n prod pod/llm-0"),
    ],
)
def test_the_address_is_what_triage_takes(target: Target, address: str) -> None:
    assert address_of(target) == address


def test_a_target_is_exported_before_its_first_poll() -> None:
    target = Target("prod/llm-0:8000", "http://10.0.0.9:8000", namespace="prod", pod="llm-0", created=1.7e9)
    page = text.render(Snapshot(1.0, targets=(target,)), openmetrics=False).decode()
    labels = 'namespace="prod",pod="llm-0"'
    assert f'kvpressure_target_listed{{{labels},target="prod/llm-0:8000"}} 1.0\n' in page
    assert f'{labels},status="pending",target="prod/llm-0:8000",text="not polled yet"}} 1.0\n' in page
    assert f'kvpressure_target_created_timestamp_seconds{{{labels},target="prod/llm-0:8000"}} 1.7e+09\n' in page
    assert "kvpressure_target_answering{" not in page


ANSWERS = ("http_401", "http_500", "not_metrics", "redirect", "tls", "dns", "of a source to come")


@pytest.mark.parametrize(
    ("reason", "answering", "state"),
    [
        *((reason, Answering.NO, "not answering") for reason in ("refused", "timeout", "unreachable")),
        *((reason, Answering.YES, "cannot be read") for reason in ANSWERS),
    ],
)
def test_what_gives_no_answer_is_silent_and_an_answer_is_no_death(reason: str, answering: Answering, state: str):
    status = status_of(health(reason))
    assert (status.answering, status.state) == (answering, state)


def test_a_server_that_is_recognised_and_not_read_is_neither() -> None:
    status = status_of(health("not_read"))
    assert (status.answering, status.is_trouble) == (Answering.YES, False)


def test_a_page_that_is_read_is_no_trouble() -> None:
    assert target_values(Target("a", "http://a:1"), health("", up=True))["target_status"] == {"read": {"read": 1.0}}


@pytest.mark.parametrize(
    ("reason", "causes", "silent", "state"),
    [
        ("", (Cause.HEALTHY, Cause.HEALTHY), False, "serves"),
        ("", (Cause.HEALTHY, Cause.KV_CACHE_PRESSURE), False, "waits"),
        ("", (Cause.STUCK, Cause.KV_CACHE_PRESSURE), False, "stuck"),
        ("http_500", (Cause.HEALTHY,), True, "unreadable"),
        ("refused", (Cause.HEALTHY,), True, "gone"),
        ("timeout", (), True, "gone"),
        ("http_401", (), True, "unreadable"),
        ("not_read", (), True, None),
        ("pending", (), True, None),
    ],
)
def test_the_state_of_a_replica_is_a_series_and_that_of_its_worst_rank(
    reason: str, causes: tuple[Cause, ...], silent: bool, state: str | None
) -> None:
    verdicts = (Diagnosis(0.0, 0.0, cause, 1.0, None, Stage.NONE, {}) for cause in causes)
    silence = Unreachable(9.0) if silent else None
    views = [replace(engine_view(diagnosis=verdict), silence=silence) for verdict in verdicts]
    values = target_values(Target("a", "http://a:1"), health(reason, up=not reason), views)
    assert values["replica_state"] == (state and {state: 1.0})


def test_texts_are_a_closed_table_without_what_servers_say() -> None:
    assert all(len(status.text) <= MAX_TEXT for status in STATUSES.values())
    assert STATUSES["http_401"].text == "401, check the token"
    values = target_values(Target("a", "http://a:1"), health("of a source to come"))
    assert "said" not in str(values)


def test_every_http_status_has_a_word_and_there_are_few_others() -> None:
    assert {http_reason(code.value) for code in HTTPStatus} <= STATUSES.keys()
    assert http_reason(599) == "http_5xx"
    assert status_of(health(http_reason(599))).state == "cannot be read"
