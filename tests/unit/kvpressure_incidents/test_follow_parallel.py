"""Processes that read beside each other: one that is killed is a sentence, and none is left behind."""

import multiprocessing
import os
import signal
import threading

import pytest

from kvpressure.config.thresholds import load_thresholds
from kvpressure.prometheus.answers import PrometheusError
from kvpressure.prometheus.client import Server
from kvpressure.prometheus.names import Discovered, Target
from kvpressure.prometheus.paging import Span
from kvpressure_incidents.follow import Task, in_parallel
from tests.support.fake_prometheus import Answer, FakePrometheus, Request, success

EMPTY = success({"resultType": "matrix", "result": []})


def tasks(url: str) -> list[Task]:
    limits = (load_thresholds(),)
    names = [Target((("instance", f"h:{port}"),)) for port in (8000, 8001)]
    return [
        Task(Server(url), Discovered(one, "vllm", 15.0), ((Span(0, 60), True),), None, limits, 120.0) for one in names
    ]


def test_one_that_is_killed_is_a_sentence_and_nobody_waits_for_the_others() -> None:
    before, over = set(multiprocessing.active_children()), threading.Event()

    def behaviour(_: Request) -> Answer:
        ours = set(multiprocessing.active_children()) - before
        os.kill(next(iter(ours)).pid or 0, signal.SIGKILL)
        over.wait(60)
        return EMPTY

    with FakePrometheus(behaviour) as server:
        try:
            with pytest.raises(PrometheusError, match="was killed"):
                in_parallel(tasks(server.url), 1, lambda _, __: None)
        finally:
            over.set()
    assert set(multiprocessing.active_children()) == before
