"""Long pages: remembered like short ones as far as there is memory for them, and read in turns."""

import asyncio
import threading
import tracemalloc
from collections.abc import Callable

import pytest

from kvpressure.engines.engine import LongPages
from kvpressure.engines.reader import PageReader
from kvpressure.model.samples import EnginePage
from kvpressure.promtext import lines
from kvpressure.promtext.lines import STEP_LINES, MalformedError, PageError, Steps, in_one_go
from kvpressure.promtext.scanner import OWN_BYTES, SHARED_BYTES, Memory, PageScanner
from kvpressure.runtimes.vllm.metrics import VLLM
from tests.support.pages import single

pytestmark = pytest.mark.exhaustive

MIB = 1 << 20
LINES = [line for line in single("vllm-0.32.0-two-ranks.prom").decode().splitlines() if 'engine="1"' not in line]


def of_ranks(ranks: int, value: str = "") -> bytes:
    """The recorded page as one server of so many ranks prints it: family by family."""
    out: list[str] = []
    family: list[str] = []
    for line in [*LINES, "# HELP end"]:
        if line.startswith("# HELP"):
            out += [line for line in family if line.startswith("#")]
            for rank in range(ranks):
                out += [one.replace('engine="0"', f'engine="{rank}"') for one in family if 'engine="0"' in one]
            family = []
        family.append(line)
    text = "\n".join(out) + "\n"
    return (text if not value else text.replace(" 0.0\n", f" {value}\n")).encode()


def hostile(seed: int) -> bytes:
    """Close to 8 MiB of wanted series, no two labels the same."""
    line = 'vllm:request_success_total{{engine="0",model_name="m",a="{0}{1}",b="b{0}{1}",c="c{0}{1}",d="{2}"}} 1.0\n'
    return "".join(line.format(seed, number, "x" * 60) for number in range(45_000)).encode()


def counted(memory: Memory | None = None) -> tuple[PageScanner[int], list[int]]:
    """A scanner, and how many series each page had that it had to learn anew."""
    learned: list[int] = []

    def learn(series: tuple[object, ...]) -> int:
        learned.append(len(series))
        return len(series)

    return PageScanner(VLLM.wanted(), learn, memory), learned


@pytest.mark.fault(
    "a server of 64 ranks, whose page is 2 MiB long",
    "its layout is learned once; every poll after that costs a twentieth, and no other long page waits for it",
)
def test_a_long_page_is_learned_once() -> None:
    scanner, learned = counted()
    for value in ("1.0", "2.0", "3.0", "4.0"):
        _, values = scanner.scan(of_ranks(64, value))
        assert values.count(float(value)) > 1000
    assert len(learned) == 1


@pytest.mark.fault(
    "forty pods, each with a page of 8 MiB of new labels",
    "their cached layouts stay within one budget, and ordinary pages are cached as before",
)
def test_long_pages_share_one_budget_and_never_take_an_ordinary_pages_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvpressure.promtext.lines._pair", lambda name, value: (name.decode(), value.decode()))
    monkeypatch.setattr("kvpressure.promtext.lines._shared", lambda head, series: (head, series))
    monkeypatch.setattr("kvpressure.promtext.blocks._BLOCKS.get", lambda _: None)
    page = hostile(0)[: 1 * MIB].rpartition(b"\n")[0] + b"\n"
    memory = Memory()
    ordinary, learned = counted(memory)
    tracemalloc.start()
    greedy = [counted(memory)[0] for _ in range(40)]
    for scanner in greedy:
        scanner.scan(page)
        ordinary.scan(of_ranks(2))
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(learned) == 1
    assert SHARED_BYTES / 2 < held < 1.5 * SHARED_BYTES


def test_what_is_held_is_about_what_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvpressure.promtext.lines._shared", lambda head, series: (head, series))
    for page in (of_ranks(1), of_ranks(32), hostile(1)[: 2 * MIB].rpartition(b"\n")[0] + b"\n"):
        scanner = counted(Memory(1 << 40))[0]
        tracemalloc.start()
        scanner.scan(page)
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        (layout,) = scanner._layouts.values()
        assert 0.6 < layout.size_bytes / held < 1.6


def test_a_target_that_is_gone_gives_its_part_back() -> None:
    memory = Memory()
    one, other = counted()[0], counted()[0]
    assert memory.allows(one, OWN_BYTES + SHARED_BYTES)
    assert not memory.allows(other, OWN_BYTES + 1)
    assert memory.allows(other, OWN_BYTES)
    del one
    assert memory.allows(other, OWN_BYTES + SHARED_BYTES)


def test_a_page_that_shrinks_gives_its_part_back() -> None:
    memory = Memory()
    scanner, other = counted(memory)[0], counted(memory)[0]
    scanner.scan(of_ranks(64))
    before = dict(memory._used)
    for ranks in (1, 2, 3, 4):  # as many layouts as are kept: the long one is the oldest, and forgotten
        scanner.scan(of_ranks(ranks) + b"# HELP x\n" * ranks)
    assert sum(memory._used.values()) < sum(before.values()) / 2
    other.scan(of_ranks(64))
    assert len(other._layouts) == 1


def test_one_layout_that_is_too_much_is_read_and_not_kept() -> None:
    scanner, learned = counted(Memory(0))
    for _ in range(2):
        plan, values = scanner.scan(of_ranks(64))
        assert len(values) == plan
    assert len(learned) == 2
    assert not scanner._layouts


def test_steps_give_what_reading_at_once_gives() -> None:
    page, pauses = hostile(2), 0

    def counted_steps() -> Steps[EnginePage]:
        nonlocal pauses
        steps = PageReader().steps(page, 1.0)
        while True:
            try:
                next(steps)
            except StopIteration as done:
                return done.value  # type: ignore[no-any-return]
            pauses += 1
            yield

    assert in_one_go(counted_steps()) == PageReader().read(page, 1.0)
    assert pauses == 45_000 // STEP_LINES


def counting(name: str, steps: int, log: list[str], end: Callable[[], str]) -> Steps[str]:
    for _ in range(steps):
        log.append(name)
        yield
    log.append(name)
    return end()


@pytest.mark.fault(
    "pods whose long pages have a new layout at each poll", "no other long page waits for more than one step of them"
)
async def test_a_known_page_waits_for_a_step_of_those_that_are_learned_and_those_for_each_other() -> None:
    log: list[str] = []
    begun, held = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def wait() -> Steps[str]:
        yield
        loop.call_soon_threadsafe(begun.set)
        held.wait(60)
        yield
        return "first"

    pages = LongPages()
    first = pages.start(wait())
    await begun.wait()
    learned = [pages.start(counting(f"learned {n}", 100, log, lambda: "learned")) for n in range(8)]
    known = pages.start(counting("known", 0, log, lambda: "known"))
    held.set()
    assert await known == "known"
    assert log[:9] == [*(f"learned {n}" for n in range(8)), "known"], "one look at each, in the order they came"
    assert await asyncio.gather(first, *learned) == ["first", *["learned"] * 8]
    rest = [name for name, before in zip(log[9:], log[8:], strict=False) if name != before]
    assert rest == [f"learned {n}" for n in range(8)], "one after the other: each takes memory while it is under way"


async def test_what_a_page_raises_is_its_own() -> None:
    def fail() -> str:
        raise MalformedError("not a page")

    pages, log = LongPages(), list[str]()
    bad, good = pages.start(counting("bad", 1, log, fail)), pages.start(counting("good", 3, log, lambda: "good"))
    with pytest.raises(PageError, match="not a page"):
        await bad
    assert await good == "good"


async def test_the_thread_keeps_nobody_waiting() -> None:
    pages = LongPages()
    assert await pages.start(PageReader().steps(of_ranks(16), 5.0)) == PageReader().read(of_ranks(16), 5.0)
    assert pages._thread.daemon


def test_replicas_share_what_is_alike_on_their_pages() -> None:
    page, scanners, held = of_ranks(2), [counted()[0] for _ in range(8)], []
    lines._shared.cache_clear()
    tracemalloc.start()
    found = []
    for scanner in scanners:
        before, _ = tracemalloc.get_traced_memory()
        found.append(scanner.scan(page))
        held.append(tracemalloc.get_traced_memory()[0] - before)
    tracemalloc.stop()
    assert all(one == found[0] for one in found)
    assert max(held[1:]) < 0.6 * held[0]
