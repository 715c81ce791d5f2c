"""What `make size` counts: the import closure of `run`, with rooms found at run time and without the other commands."""

from tests.support.size import EXPORTER, closure, measures

NOT_YET = {
    "lines that `kvpressure run` loads",
    "package, lines",
    "tests, lines",
    "benches, lines",
}
"""Measures that are beyond their bar."""


def test_what_run_loads_has_rooms_found_at_run_time_and_no_other_command() -> None:
    files = closure()
    assert {path.relative_to(EXPORTER).parts[0] for path in files} == {"kvpressure"}
    loaded = {str(path.relative_to(EXPORTER / "kvpressure")) for path in files}
    assert {"daemon/exporter.py", "runtimes/sglang/metrics.py", "sources/port_owner.py"} <= loaded
    assert not any(path.startswith(("bundle/", "prometheus/")) for path in loaded)


def test_a_measure_that_is_within_its_bar_stays_there() -> None:
    bars = {name: (value, int(bar.replace(",", ""))) for name, (value, bar) in measures().items() if bar[0].isdigit()}
    assert {name for name, (value, bar) in bars.items() if value > bar} <= NOT_YET
