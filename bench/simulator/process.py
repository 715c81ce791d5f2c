"""The `python_*` and `process_*` part of a single-process page."""

from __future__ import annotations

from bench.simulator.text import number

_ROWS = (
    ("python_gc_objects_collected_total", "counter", "Objects collected during gc", (15710, 2221, 653)),
    ("python_gc_objects_uncollectable_total", "counter", "Uncollectable objects found during GC", (0, 0, 0)),
    ("python_gc_collections_total", "counter", "Number of times this generation was collected", (1586, 144, 10)),
)
_INFO = 'python_info{implementation="CPython",major="3",minor="11",patchlevel="7",version="3.11.7"} 1.0'


def process_lines(started: float, now: float) -> list[str]:
    """Lines of a process started at unix time `started`, with plausible sizes."""
    lines = []
    for name, kind, text, values in _ROWS:
        lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
        lines += [f'{name}{{generation="{generation}"}} {value}.0' for generation, value in enumerate(values)]
    lines += ["# HELP python_info Python platform information", "# TYPE python_info gauge", _INFO]
    gauges = (
        ("virtual_memory_bytes", "gauge", "Virtual memory size in bytes.", "2.181292032e+09"),
        ("resident_memory_bytes", "gauge", "Resident memory size in bytes.", "6.51988992e+08"),
        ("start_time_seconds", "gauge", "Start time of the process since unix epoch in seconds.", number(started)),
        (
            "cpu_seconds_total",
            "counter",
            "Total user and system CPU time spent in seconds.",
            f"{15 + now - started:.2f}",
        ),
        ("open_fds", "gauge", "Number of open file descriptors.", "67.0"),
        ("max_fds", "gauge", "Maximum number of open file descriptors.", "20000.0"),
    )
    for name, kind, text, value in gauges:
        full = f"process_{name}"
        lines += [f"# HELP {full} {text}", f"# TYPE {full} {kind}", f"{full} {value}"]
    return lines
