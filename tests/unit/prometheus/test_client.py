"""Questions to a Prometheus that answers badly: what is said, what is asked again, what is asked in smaller pieces."""

import gzip
import json
import pickle
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from kvpressure.prometheus.answers import BusyError, PrometheusError, TooMuchError, connection_error
from kvpressure.prometheus.client import LARGEST_ANSWER_BYTES, Prometheus, Server
from kvpressure.prometheus.paging import Span, in_pages
from tests.support.fake_prometheus import Answer, FakePrometheus, Headed, Request, dripping, failure, success

_Asking = tuple[FakePrometheus, Prometheus]
EMPTY = success({"resultType": "matrix", "result": []})


@contextmanager
def asking(behaviour: Callable[[Request], Answer], waits: list[float] | None = None) -> Iterator[_Asking]:
    """A Prometheus that answers so, and a client of it that does not wait."""
    wait = (waits if waits is not None else []).append
    with (
        FakePrometheus(behaviour) as server,
        Prometheus(Server(server.url), wait=wait) as client,
    ):
        yield server, client


def refused(answer: Answer, kind: type[PrometheusError], said: str) -> _Asking:
    with asking(lambda _: answer) as (server, prometheus), pytest.raises(kind, match=said):
        prometheus.range("up", 0, 60, 15)
    return server, prometheus


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (failure(401, "no"), "requires credentials (it says: no); give --http.config.file"),
        (failure(403, "tenant"), "forbids /api/v1/query_range to these credentials"),
        ((404, b"404 page not found"), "(it says: 404 page not found); is it a Prometheus? Mimir"),
        ((404, b"<html><title>Not found</title>"), "/api/v1/query_range; is it a Prometheus?"),
        (failure(400, "invalid parameter: no org id"), "http_headers: {X-Scope-OrgID: {values: [TENANT]}}"),
        (failure(400, "parse error: unexpected }"), "unexpected }); check --selector"),
        ((302, b""), "not followed"),
        ((200, b"<html>Log in</html>"), "is it a Prometheus"),
        ((200, {"status": "success", "data": {"resultType": "vector", "result": []}}), "no matrix"),
    ],
)
def test_what_a_refusal_means(answer: Answer, said: str) -> None:
    server, _ = refused(answer, PrometheusError, re.escape(said))
    assert len(server.requests) == 1


def test_a_server_that_is_busy_is_asked_again_and_not_for_ever() -> None:
    waits: list[float] = []
    answers = [failure(503, "overloaded"), failure(429, "slow down"), EMPTY]
    with asking(lambda _: answers.pop(0), waits) as (_, prometheus):
        assert prometheus.range("up", 0, 60, 15) == []
    assert waits == [1.0, 4.0]
    refused(failure(500, "broken"), PrometheusError, r"answered 500 .* is it overloaded\? \(4 attempts\)")


@pytest.mark.parametrize(("code", "again"), [(socket.EAI_NONAME, False), (socket.EAI_AGAIN, True)])
def test_a_name_that_does_not_exist_is_not_looked_up_again(code: int, again: bool) -> None:
    error = connection_error(socket.gaierror(code, "Name or service not known"), "http://nowhere:9090")
    assert error.sentence == "no connection to http://nowhere:9090: Name or service not known"
    assert isinstance(error, BusyError) is again


def test_where_posts_are_not_allowed_it_is_a_get() -> None:
    with asking(lambda asked: (405, b"") if asked.method == "POST" else EMPTY) as (server, prometheus):
        prometheus.range("up", 0, 60, 15)
        assert [request.method for request in server.requests] == ["POST", "GET"]
        assert server.requests[1].query["query"] == "up"


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (400, "exceeded maximum resolution of 11,000 points per timeseries. Try decreasing the query resolution"),
        (422, "query processing would load too many samples into memory in query execution"),
        (503, "query timed out in expression evaluation"),
        (422, "the query hit the max number of series limit (limit: 100000 series)"),
        (422, "the query time range exceeds the limit (query length: 720h0m0s, limit: 24h0m0s)"),
        (422, "cannot select more than -search.maxSamplesPerQuery=1000000000 samples"),
    ],
)
def test_what_is_too_much_is_asked_for_in_halves(status: int, said: str) -> None:
    def behaviour(request: Request) -> Answer:
        seconds = float(request.query["end"]) - float(request.query["start"])
        return failure(status, said) if seconds > 3600 else EMPTY

    with asking(behaviour) as (server, prometheus):
        answers = list(in_pages(Span(0, 14_400), 60, 900, lambda one: prometheus.range("up", *_of(one), 60)))
        pieces = [Span(float(one.query["start"]), float(one.query["end"])) for one in server.requests]
        answered = [one for one in pieces if one.seconds <= 3600]
        assert answered == [Span(0, 3600), Span(3600, 7200), Span(7200, 10_800), Span(10_800, 14_400)]
        assert answers == [[], [], [], []]
        with pytest.raises(TooMuchError, match="so much at once"):
            list(in_pages(Span(0, 14_400), 60, 7200, lambda one: prometheus.range("up", *_of(one), 60)))


def test_an_answer_that_is_too_large_is_not_read_to_its_end() -> None:
    huge = b'{"status":"success","data":{"resultType":"matrix","result":[' + b" " * (LARGEST_ANSWER_BYTES + (1 << 20))
    refused((200, huge), TooMuchError, "larger than 24 MiB")


def test_a_server_that_says_when_is_left_alone_until_then_but_not_for_ever() -> None:
    waits: list[float] = []
    told = iter(("7", "999999", "Wed, 21 Oct 2026 07:28:00 GMT"))

    def behaviour(_: Request) -> Answer:
        after = next(told, None)
        return EMPTY if after is None else (429, Headed(b"slow down", {"Retry-After": after}))

    with asking(behaviour, waits) as (_, prometheus):
        assert prometheus.range("up", 0, 60, 15) == []
    assert waits == [7.0, 120.0, 16.0]


@pytest.mark.fault(
    "a Prometheus queried by `incidents`, or a server in its place, sends head or body of its answer slowly",
    "one deadline applies to the whole exchange",
)
@pytest.mark.parametrize(
    "head", [b"HTTP/1.1 200 OK\r\nX-A: ", b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", b""]
)
def test_an_answer_whose_head_or_body_drips_in_ends_at_the_deadline(head: bytes) -> None:
    began = time.monotonic()
    with (
        dripping(head) as url,
        Prometheus(Server(url, deadline_seconds=1.0)) as prometheus,
        pytest.raises(TooMuchError, match=r"did not answer .* within 1 s"),
    ):
        prometheus.range("up", 0, 60, 15)
    assert time.monotonic() - began < 5


@pytest.mark.fault(
    "a Prometheus queried by `incidents` sends a compressed answer of a few megabytes that unpacks to gigabytes",
    "it is unpacked up to the size limit of an answer",
)
def test_an_answer_that_unpacks_to_gigabytes_is_not_unpacked_whole() -> None:
    bomb = 200, Headed(gzip.compress(bytes(1 << 28), 1), {"Content-Encoding": "gzip"})
    _, prometheus = refused(bomb, TooMuchError, "larger than 24 MiB")
    assert prometheus.received_bytes == LARGEST_ANSWER_BYTES + 1


def test_an_error_keeps_its_words_on_its_way_from_another_process() -> None:
    for error in (TooMuchError("a"), PrometheusError("a")):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), again.sentence) == (type(error), "a")


@pytest.mark.parametrize(
    "series",
    [
        {"metric": {}, "values": [[1, "x"]]},
        {"metric": {}, "values": [["1"]]},
        {"metric": {}, "values": 5},
        {"metric": [], "values": 5},
        7,
    ],
)
def test_series_that_are_none_are_an_error_of_the_server(series: object) -> None:
    odd = (200, {"status": "success", "data": {"resultType": "matrix", "result": [series]}, "warnings": 3})
    refused(odd, PrometheusError, "series that are none")


def test_warnings_of_answers_that_are_not_complete_are_kept() -> None:
    partial = success({"resultType": "matrix", "result": []}, "store 10.0.0.1 timed out", "store 10.0.0.1 timed out")
    with asking(lambda _: partial) as (_, prometheus):
        prometheus.range("up", 0, 60, 15)
        prometheus.range("up", 60, 120, 15)
        assert list(prometheus.warnings) == ["store 10.0.0.1 timed out"]


def test_a_path_prefix_stays_and_what_the_api_adds_does_not_come_twice() -> None:
    with FakePrometheus(lambda _: EMPTY) as server:
        for path in ("/prometheus", "/prometheus/", "/prometheus/api/v1"):
            with Prometheus(Server(server.url + path)) as prometheus:
                prometheus.range("up", 0, 60, 15)
        assert {request.path for request in server.requests} == {"/prometheus/api/v1/query_range"}


def _of(span: Span) -> tuple[float, float]:
    return span.start, span.end


def test_a_connection_that_the_server_has_closed_meanwhile_is_not_used_again() -> None:
    body = json.dumps(EMPTY[1]).encode()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            for _ in range(3):
                connection, _ = listening.accept()
                with connection:
                    connection.recv(1 << 16)
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
                    time.sleep(0.03)  # the answer was read, and the loop of the client stands still

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        waits: list[float] = []
        server = Server(f"http://127.0.0.1:{listening.getsockname()[1]}")
        with Prometheus(server, wait=waits.append) as prometheus:
            for _ in range(3):
                assert prometheus.range("up", 0, 60, 15) == []
                time.sleep(0.05)
        thread.join()
        assert waits == []
