import threading

from kvpressure.model.samples import GpuReport, GpuSample
from kvpressure.sources.gpu.backend import CardPool, merge


class FakeCard:
    """Answers at once, or when `gate` opens."""

    def __init__(self, index: int, gate: threading.Event | None = None) -> None:
        self.key = f"GPU-{index}"
        self.index = str(index)
        self.gate = gate
        self.reads = 0

    def read(self, t: float) -> GpuReport:
        self.reads += 1
        if self.gate is not None:
            self.gate.wait(10)
        return GpuReport(t, (GpuSample(t, self.key, self.index, "fake"),), {"bad": 1})


def nothing() -> None:
    pass


class BrokenCard(FakeCard):
    def read(self, t: float) -> GpuReport:
        raise RuntimeError("a bug")


def test_all_cards_are_in_one_report_in_the_order_of_their_index() -> None:
    ended: list[str] = []
    pool = CardPool([FakeCard(10), FakeCard(2)], wait_seconds=5, error_seconds=5, shutdown=lambda: ended.append("shut"))
    report = pool.read(7.0)
    assert [gpu.index for gpu in report.gpus] == ["2", "10"]
    assert report.rejected == {"bad": 2}
    pool.close()
    assert ended == ["shut"]


def test_a_slow_card_delays_no_other_and_comes_later_with_its_own_time() -> None:
    gate = threading.Event()
    slow = FakeCard(1, gate)
    pool = CardPool([FakeCard(0), slow], wait_seconds=0.05, error_seconds=60, shutdown=nothing)
    assert [(gpu.index, gpu.t) for gpu in pool.read(1.0).gpus] == [("0", 1.0)]
    assert [(gpu.index, gpu.t) for gpu in pool.read(2.0).gpus] == [("0", 2.0)]
    gate.set()
    readings: list[tuple[str, float]] = []
    while ("1", 1.0) not in readings:
        readings += [(gpu.index, gpu.t) for gpu in pool.read(3.0).gpus]
    assert readings.count(("1", 1.0)) == 1


def test_a_card_that_does_not_answer_is_read_once_and_named_after_a_while() -> None:
    gate = threading.Event()
    stuck = FakeCard(1, gate)
    ended: list[str] = []
    cards = [FakeCard(0), stuck]
    pool = CardPool(cards, wait_seconds=0.01, error_seconds=0.0, shutdown=lambda: ended.append("shut"))
    for _ in range(5):
        report = pool.read(1.0)
    assert stuck.reads == 1
    assert report.errors["GPU-1"].startswith("timeout: ")
    pool.close()
    assert ended == [], "the library must not be shut down under a card that is still in it"
    gate.set()


def test_a_card_that_raises_is_an_error_and_is_read_again() -> None:
    pool = CardPool([FakeCard(0), BrokenCard(1)], wait_seconds=5, error_seconds=5, shutdown=nothing)
    for _ in range(2):
        report = pool.read(1.0)
        assert report.errors == {"GPU-1": "driver_error: RuntimeError: a bug"}
        assert len(report.gpus) == 1


def test_instances_are_ordered_after_their_card() -> None:
    samples = [GpuSample(1.0, index, index, "fake") for index in ("1", "0:10", "0:9", "0")]
    report = merge(1.0, [GpuReport(1.0, (sample,)) for sample in samples], {})
    assert [gpu.index for gpu in report.gpus] == ["0", "0:9", "0:10", "1"]
