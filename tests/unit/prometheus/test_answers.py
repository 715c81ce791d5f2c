"""What an answer takes in memory is bounded by what it is long, whatever is in it."""

import json
import subprocess
import sys

import pytest

from kvpressure.prometheus.answers import (
    MAX_VALUES,
    PrometheusError,
    Samples,
    TooManyError,
    TooMuchError,
    labels_of,
    read_answer,
    read_json,
)
from kvpressure.prometheus.client import LARGEST_ANSWER_BYTES, Prometheus, Server
from tests.support.fake_prometheus import Answer, FakePrometheus, Request, success

pytestmark = pytest.mark.process

HEAD, TAIL = '{"status":"success","data":{"resultType":"matrix","result":[', "]}}"
# VmHWM begins anew with a program; ru_maxrss would be that of whoever started it, where that was more.
_CHILD = """
import re, sys
from kvpressure.prometheus.client import LARGEST_ANSWER_BYTES, Prometheus, Server
from kvpressure.prometheus.answers import PrometheusError
def peak_kib():
    return int(re.search("VmHWM:[^0-9]*([0-9]+)", open("/proc/self/status").read())[1])
with Prometheus(Server(sys.argv[1])) as client:
    client.instant("warm", 1)
    before = peak_kib()
    try:
        told = str(len(client.range("up", 0, 60, 15)))
    except PrometheusError as error:
        told = error.sentence
    print(peak_kib() - before, told, sep="\\n")
"""


def filled(part: str) -> bytes:
    """As large an answer as is read, of one part again and again."""
    room = LARGEST_ANSWER_BYTES - len(HEAD) - len(TAIL) - len(part.encode()) - 2
    return (HEAD + part + ("," + part) * (room // (len(part.encode()) + 1)) + TAIL).encode()


def samples(text: str) -> bytes:
    """As many samples of one series."""
    room = LARGEST_ANSWER_BYTES - 200
    values = text + ("," + text) * (room // (len(text) + 1))
    return f'{HEAD}{{"metric":{{}},"values":[{values}]}}{TAIL}'.encode()


BOMBS = {
    "empty lists": lambda: filled("[]"),
    "empty objects": lambda: filled("{}"),
    "series without anything": lambda: filled('{"metric":{},"values":[]}'),
    "a million series of one sample": lambda: filled('{"metric":{},"values":[[1,"1"]]}'),
    "labels": lambda: filled('{"metric":{' + ",".join(f'"a{n}":"{n}"' for n in range(200)) + "}}"),
    "numbers": lambda: filled("1.5"),
    "one list in the other": lambda: b"%s%s" % (HEAD.encode(), b"[" * (LARGEST_ANSWER_BYTES - 200)),
    "the shortest samples": lambda: samples("[1,1]"),
    "samples as they are": lambda: samples('[1700000000.123,"12.5"]'),
    "commas for samples": lambda: samples("[1,1],,,,,,,,,,"),
    "a sample without an end": lambda: samples("[" + "1," * 1_000_000 + "1]"),
    "wide characters": lambda: filled('"' + "\U0001f600" + "a" * 1_000_000 + '"'),
    "one long integer": lambda: samples("[1," + "9" * 20_000_000 + "]"),
}


@pytest.mark.fault(
    "a Prometheus queried by `incidents` answers with millions of lists, series, labels or samples",
    "one error message, and at most eight times the largest answer in memory",
)
@pytest.mark.parametrize("name", BOMBS)
def test_no_answer_takes_more_than_eight_times_its_length(name: str) -> None:
    body = BOMBS[name]()

    def behaviour(request: Request) -> Answer | None:
        if request.path.endswith("/query"):
            return success({"resultType": "vector", "result": []})
        return 200, body

    with FakePrometheus(behaviour) as server:
        done = subprocess.run(
            [sys.executable, "-c", _CHILD, server.url], capture_output=True, text=True, check=True, timeout=120
        )
    kibibytes, told = done.stdout.splitlines()
    assert int(kibibytes) * 1024 <= 8 * LARGEST_ANSWER_BYTES, (name, kibibytes, told)
    assert told.isdecimal() or "; " in told


def test_samples_are_cut_out_and_put_back_where_they_were() -> None:
    rows = [
        {"metric": {"a": '"values":[[1,"2"]]'}, "values": [[1, "2"], [3.5, "NaN"]]},
        {"metric": {}, "values": []},
        {"metric": {"b": "]]"}, "values": [[5, "+Inf"]]},
    ]
    for separators in ((",", ":"), (", ", ": "), (" , ", " : ")):
        body = json.dumps({"status": "success", "data": rows}, separators=separators).encode()
        found, cut = read_answer(body)
        assert [one["metric"] for one in found["data"]] == [one["metric"] for one in rows]
        assert [list(one.times) for one in cut] == [[1.0, 3.5], [5.0]]
        assert [str(value) for one in cut for value in one.values] == ["2.0", "nan", "inf"]


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "9" * 5000, "-" + "9" * 400, "1e999", "NaN", "[Infinity]", '"', "\ud800"]
)
def test_what_no_number_holds_and_no_stack_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - its words are tested where they are shown
        read_json(text.encode(errors="surrogatepass"))


def test_values_are_counted_before_they_are_made() -> None:
    with pytest.raises(TooManyError):
        read_json(b"[" + b"1," * MAX_VALUES + b"1]")


def test_a_half_of_a_character_is_one_that_can_be_sent_back() -> None:
    assert labels_of({"pod": json.loads('"a\\ud800b"')}) == {"pod": "a\ufffdb"}


@pytest.mark.parametrize("number", ["9" * 5000, "-" + "9" * 4301, "9" * 400, "1e999"])
@pytest.mark.parametrize("place", ["t", "value", "label", "warning", "index", "vector"])
def test_a_number_of_thousands_of_digits_is_a_sentence_or_no_matter(number: str, place: str) -> None:
    parts = {"t": "1", "value": '"1"', "label": '"x"', "warning": '"w"', "index": "[]", "vector": '"1"'} | {
        place: number
    }
    values = parts["index"] if place == "index" else f"[[{parts['t']},{parts['value']}]]"
    kind = "vector" if place == "vector" else "matrix"
    body = (
        f'{{"status":"success","warnings":[{parts["warning"]}],"data":{{"resultType":"{kind}","result":'
        f'[{{"metric":{{"a":{parts["label"]}}},"values":{values},"value":[1,{parts["vector"]}]}}]}}}}'
    ).encode()
    with FakePrometheus(lambda _: (200, body)) as server, Prometheus(Server(server.url)) as client:
        try:
            told = str(client.instant("up", 1) if kind == "vector" else client.range("up", 0, 60, 15))
        except PrometheusError as error:
            told = str(error)
    assert "is it a Prometheus" in told or place in ("value", "label", "warning", "vector")


@pytest.mark.fault(
    "a Prometheus queried by `incidents` lists a million series or label values",
    "one error message with the option that narrows the query",
)
def test_a_listing_of_a_million_is_one_sentence() -> None:
    listed = {"/api/v1/series": [{"pod": "a"}] * 1_000_000, "/api/v1/label/a/values": ["v"] * 1_000_000}

    def behaviour(request: Request) -> Answer:
        return success(listed[request.path])

    with FakePrometheus(behaviour) as server, Prometheus(Server(server.url)) as client:
        with pytest.raises(TooMuchError, match=r"too much at once: .*; narrow --selector"):
            client.series(["x"], 0, 1)
        with pytest.raises(TooMuchError, match=r"too much at once: .*; narrow --selector"):
            client.label_values("a", ["x"], 0, 1)
        assert {request.query["limit"] for request in server.requests} == {"40001"}


def test_samples_are_pairs() -> None:
    found = Samples.of([[1, "2"], (3.0, 4)])
    assert (len(found), list(found)) == (2, [(1.0, 2.0), (3.0, 4.0)])
