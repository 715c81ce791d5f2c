"""Signals that stand in labels: the newest of many series, hostile names, and what thousands of them cost."""

import pytest

from kvpressure.engines.reader import PageReader

BASE = 1_800_000_000.0
HEAD = 'vllm:num_requests_running{engine="0",model_name="m"} 2.0\n'


def adapters(*rows: tuple[str, float], slots: str = "2") -> bytes:
    text = HEAD
    for names, time in rows:
        text += (
            f'vllm:lora_requests_info{{max_lora="{slots}",running_lora_adapters="{names}",'
            f'waiting_lora_adapters="{names}"}} {time!r}\n'
        )
    return text.encode()


def gauges(page: bytes) -> dict[str, float]:
    (engine,) = PageReader().read(page, BASE).engines
    return {name: value for name, value in engine.gauges.items() if name.startswith("adapter")}


def test_of_series_that_stay_on_the_page_the_newest_counts():
    page = adapters(("a,b", BASE + 1), ("b,c", BASE + 9), ("", BASE + 5))
    assert gauges(page) == {"adapter_slots": 2.0, "adapters_running": 2.0, "adapters_seen": 3.0}
    assert gauges(adapters(("a,b", BASE + 1), ("", BASE + 5)))["adapters_running"] == 0.0


def test_times_that_several_processes_added_up_are_not_the_newest():
    page = adapters(("a,b", 2 * BASE + 3), ("b", BASE + 9), ("", BASE + 5))
    assert gauges(page)["adapters_running"] == 1.0


@pytest.mark.parametrize("value", ["NaN", "-1.0", "+Inf", "0.0"])
def test_a_series_without_a_time_says_nothing(value):
    page = adapters(("a", BASE)).replace(repr(BASE).encode(), value.encode())
    assert gauges(page) == {}


def test_labels_that_are_no_numbers_or_not_there_say_nothing():
    assert "adapter_slots" not in gauges(adapters(("a", BASE), slots="many"))
    assert gauges(HEAD.encode() + b"vllm:lora_requests_info 1800000000.0\n") == {}


@pytest.mark.parametrize("name", ["a}b", "a b", 'a\\"b', "ä", "a\\\\"])
def test_an_adapter_may_have_any_name(name):
    assert gauges(adapters((name, BASE), (f"{name},c", BASE + 1)))["adapters_running"] == 2.0


@pytest.mark.parametrize(
    "line", ["vllm:lora_requests_info{", 'vllm:lora_requests_info{max_lora="2} 1.8e9', "vllm:lora_requests_info{} x"]
)
def test_a_line_that_is_none_is_left_out_and_spoils_nothing(line):
    page = adapters(("a,b", BASE)) + line.encode() + b"\n"
    assert gauges(page) == {"adapter_slots": 2.0, "adapters_running": 2.0, "adapters_seen": 2.0}


def test_thousands_of_sets_cost_no_learning_of_the_page_anew():
    reader, rows = PageReader(), [(f"a{number}", BASE + number) for number in range(2000)]
    plans: list[object] = []
    learn = reader._scanner._make_plan
    reader._scanner._make_plan = lambda series: plans.append(series) or learn(series)
    for count in (1500, 1600, 2000):
        (engine,) = reader.read(adapters(*rows[:count]), BASE).engines
        assert engine.gauges["adapters_running"] == 1.0
        assert engine.gauges["adapters_seen"] >= 256
    assert len(plans) == 1


def test_a_new_set_of_adapters_is_read_by_the_same_reader():
    reader = PageReader()
    first = reader.read(adapters(("a", BASE)), BASE).engines[0].gauges
    second = reader.read(adapters(("a", BASE), ("a,b", BASE + 2)), BASE + 2).engines[0].gauges
    assert (first["adapters_running"], second["adapters_running"], second["adapters_seen"]) == (1.0, 2.0, 2.0)
