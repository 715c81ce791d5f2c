"""Lines to incidents: what counts once, what counts again, what is only shown."""

from datetime import UTC, datetime

import pytest

from kvpressure.model.environment import LOG_KINDS, ContainerId
from kvpressure.sources.logs.lines import Line
from kvpressure.sources.logs.tally import INCIDENT_SECONDS, Tally
from tests.support.tools import FIXTURES

LOGS = FIXTURES / "logs"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 50.00 MiB."
PREEMPTED = "WARNING is preempted by PreemptionMode.SWAP mode because there is not enough KV cache space."
START = 1_704_067_200.0


def tally() -> Tally:
    return Tally(ContainerId("ns", "pod", "vllm"), START)


def at(text: str, t: float) -> Line:
    return Line(text, datetime.fromtimestamp(t, UTC).isoformat())


def test_every_kind_is_counted_from_zero():
    assert tally().report(START).counts == dict.fromkeys(LOG_KINDS, 0)


def test_one_crash_is_one_death_and_one_oom_however_often_it_is_named():
    count = tally()
    for line in (LOGS / "v1-oom.log").read_text().splitlines():
        count.take(Line(line), START + 5, old=False)
    report = count.report(START + 5)
    assert {kind: n for kind, n in report.counts.items() if n} == {"device_oom": 1, "engine_dead": 1}
    assert report.latest == {"device_oom": START + 5, "engine_dead": START + 5}
    assert "Tried to allocate 50.00 MiB" in report.lines["device_oom"]


@pytest.mark.parametrize("kind_line", [("device_oom", OOM), ("engine_dead", "EngineDeadError: gone")])
def test_trouble_that_goes_on_counts_again_and_again(kind_line: tuple[str, str]):
    kind, text = kind_line
    count, seconds = tally(), INCIDENT_SECONDS[kind_line[0]]
    for second in range(int(3 * seconds)):
        count.take(at(text, START + second), START, old=False)
    assert count.report(START).counts[kind] == 3
    assert count.report(START).latest[kind] == START + 3 * seconds - 1


def test_streams_a_little_out_of_order_are_one_incident():
    count = tally()
    for t in (1.0, 0.9, 1.1):
        count.take(at(OOM, START + t), START, old=False)
    assert count.report(START).counts["device_oom"] == 1


def test_each_preemption_line_is_one():
    count = tally()
    for _ in range(3):
        count.take(at(PREEMPTED, START + 1), START, old=False)
    assert count.report(START).counts["preemption"] == 3


def test_a_container_that_crashes_again_counts_again_at_once():
    count = tally()
    for second in (1.0, 2.0):
        count.begin()
        count.take(at(OOM, START + second), START, old=False)
    assert count.report(START).counts["device_oom"] == 2


def test_lines_from_before_are_shown_with_their_time_and_not_counted():
    count = tally()
    count.take(at(OOM, START - 30), START, old=True)
    report = count.report(START)
    assert report.counts["device_oom"] == 0
    assert report.latest == {"device_oom": START - 30}
    assert report.lines["device_oom"] == OOM


def test_an_old_line_without_a_time_is_shown_without_one():
    count = tally()
    count.take(Line(OOM), START + 1, old=True)
    report = count.report(START)
    assert (report.counts["device_oom"], report.latest, report.lines["device_oom"]) == (0, {}, OOM)


def test_the_rest_of_a_traceback_that_is_half_old_is_not_a_new_incident():
    count = tally()
    count.take(at(OOM, START - 0.1), START, old=False)
    count.take(at(OOM, START + 0.1), START, old=False)
    assert count.report(START).counts["device_oom"] == 0


def test_a_line_with_a_time_counts_by_it_even_when_it_was_there_before_it_was_read():
    count = tally()
    count.take(at(OOM, START + 3), START + 5, old=True)
    assert count.report(START).counts["device_oom"] == 1


def test_evidence_is_short_printable_and_holds_the_telling_words():
    count = tally()
    count.take(Line("\x1b[31mERROR\x1b[0m " + "a" * 900 + "\x07 " + OOM + "z" * 900), START, old=False)
    line = count.report(START).lines["device_oom"]
    assert len(line) <= 200
    assert line.isprintable()
    assert "CUDA out of memory" in line


def test_a_prompt_is_neither_counted_nor_learned_from_nor_kept():
    count = tally()
    for text in (LOGS / "chatter.log").read_text().splitlines():
        count.take(Line(text), START + 1, old=False)
    report = count.report(START)
    assert not any(report.counts.values())
    assert report.lines == {}
    assert report.kv_capacity_tokens is None


def test_the_start_up_lines_give_capacity_and_bytes_and_count_one_start():
    count = tally()
    for line in (LOGS / "v1-tensor-parallel.log").read_text().splitlines():
        count.take(at(line, START + 1), START, old=False)
    report = count.report(START)
    assert report.counts["kv_capacity"] == 1
    assert report.kv_capacity_tokens == 131_072
    assert report.kv_bytes_per_token == 65_536


MAMBA = (
    "ERROR 08-20 11:02:41 [core.py:1165] ValueError: max_num_seqs (1024) exceeds available Mamba cache blocks (856). "
)
TOO_LONG = (
    "ValueError: To serve at least one request with the models's max seq len (65536), (4.76 GiB KV cache is needed, "
    "which is larger than the available KV cache memory (1.56 GiB). Based on the available memory, the estimated "
    "maximum model length is 15984. Try increasing `gpu_memory_utilization` or decreasing `max_model_len`."
)


@pytest.mark.parametrize(
    ("line", "fix"),
    [
        (f"{MAMBA}Each decode sequence requires one Mamba cache block.", "; start it with --max-num-seqs 856"),
        (TOO_LONG, "; start it with --max-model-len 15984"),
        (TOO_LONG.replace("15984", "0"), ""),
        ("ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`.", ""),
    ],
)
def test_a_refusal_that_names_a_number_gets_the_flag_that_takes_it(line: str, fix: str):
    count = tally()
    assert count.take(Line(line), START, old=False)
    shown = count.report(START).lines["kv_exhausted"]
    assert shown.endswith(fix) if fix else "start it with" not in shown
    assert len(shown) <= 200
