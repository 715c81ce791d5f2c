"""A rank's statistics as vLLM's page: the lines of a recorded page, with what is simulated in place of its values.

Names, help texts, types, labels and their order are those of recordings of vLLM 0.32.0 and 0.12.0, and so is every
value that nothing here simulates.
"""

from __future__ import annotations

import json
import lzma
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

from prometheus_client import utils

from bench.simulator.clients import Frontend
from bench.simulator.config import EngineConfig
from bench.simulator.scheduler import Rank

number: Final[Callable[[float], str]] = utils.floatToGoString
TRACES: Final = Path(__file__).parents[2] / "tests" / "fixtures" / "traces"
RECORDED: Final = {
    ("0.32.0", False): "preemption-thrash",
    ("0.32.0", True): "two-ranks",
    ("0.12.0", False): "v0.12-preemption",
}
"""By version, and whether several API processes share the page. Such a page has no `_created` and no `process_*`, and
the scheduler's gauges are missing until the first request."""
CREATED_SECONDS: Final = 30.0
"""After the process was started."""
SCALARS: Final = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    'vllm:num_requests_waiting_by_reason{reason="capacity"}': "waiting",
    "vllm:kv_cache_usage_perc": "usage_ratio",
    "vllm:prefix_cache_queries_total": "prefix_queries",
    "vllm:prefix_cache_hits_total": "prefix_hits",
    "vllm:num_preemptions_total": "preemptions",
    "vllm:prompt_tokens_total": "prompt_tokens",
    'vllm:prompt_tokens_by_source_total{source="local_compute"}': "prompt_computed",
    'vllm:prompt_tokens_by_source_total{source="local_cache_hit"}': "prompt_cached",
    "vllm:prompt_tokens_cached_total": "prompt_cached",
    'vllm:prompt_tokens_cached_by_source_total{source="device"}': "prompt_cached",
    "vllm:generation_tokens_total": "generation_tokens",
    'vllm:request_success_total{finished_reason="stop"}': "finished_stop",
    'vllm:request_success_total{finished_reason="length"}': "finished_length",
    'vllm:request_success_total{finished_reason="abort"}': "finished_abort",
}
"""Samples of a rank, without the labels that all have, and which of its statistics or counters they are."""
HISTOGRAMS: Final = {
    "vllm:request_prompt_tokens": "prompt",
    "vllm:request_generation_tokens": "generation",
    "vllm:iteration_tokens_total": "iteration",
    "vllm:request_max_num_generation_tokens": "max_tokens",
    "vllm:request_params_n": "params_n",
    "vllm:request_params_max_tokens": "max_tokens",
    "vllm:time_to_first_token_seconds": "ttft",
    "vllm:inter_token_latency_seconds": "inter_token",
    "vllm:request_time_per_output_token_seconds": "per_output_token",
    "vllm:e2e_request_latency_seconds": "e2e",
    "vllm:request_queue_time_seconds": "queue",
    "vllm:request_inference_time_seconds": "inference",
    "vllm:request_prefill_time_seconds": "prefill",
    "vllm:request_decode_time_seconds": "decode",
    "vllm:request_num_preemptions": "preemptions",
    "vllm:request_prefill_kv_computed_tokens": "prefill_computed",
}


@dataclass(slots=True)
class Family:
    """A family of a recorded page: its comments, and its samples without those of ranks beyond the first."""

    name: str
    comments: list[str]
    samples: list[str] = field(default_factory=list)

    @property
    def is_gauge_of_scheduler(self) -> bool:
        """Whether it comes with the first step where several processes share a page."""
        fixed = ("vllm:engine_sleep_state", "vllm:cache_config_info")
        return self.name.startswith("vllm:") and self.comments[1].endswith(" gauge") and self.name not in fixed


@cache
def recorded(version: str, multiprocess: bool) -> Sequence[Family]:
    """Return the families of the last page of a recording, in its order."""
    with lzma.open(TRACES / f"{RECORDED[version, multiprocess]}.jsonl.xz", "rt") as file:
        page = json.loads(file.readlines()[-1])["page"]
    found: list[Family] = []
    for line in page.splitlines():
        if line.startswith("# HELP"):
            found.append(Family(line.split(" ", 3)[2], [line]))
        elif line.startswith("#"):
            found[-1].comments.append(line)
        elif 'engine="1"' not in line:
            found[-1].samples.append(line)
    return found


class PageWriter:
    """Writes the pages of one server process started at unix time `started`."""

    def __init__(self, config: EngineConfig, ranks: Sequence[Rank], frontend: Frontend, started: float) -> None:
        self._config = config
        self._ranks = ranks
        self._frontend = frontend
        self._started = started
        families = recorded(config.version, config.multiprocess)
        self._families = [(family, self._lines_of(family)) for family in families]

    def page(self) -> bytes:
        """The full page as of now."""
        waits = self._config.multiprocess and not any(
            rank.stats.counters["steps"] or rank.running or rank.waiting for rank in self._ranks
        )
        lines: list[str] = []
        for family, samples in self._families:
            if family.name.startswith("http_") and not self._frontend.answers:
                continue
            if not (waits and family.is_gauge_of_scheduler):
                lines += family.comments
                lines += samples()
        return ("\n".join(lines) + "\n").encode()

    def _lines_of(self, family: Family) -> Callable[[], list[str]]:
        """What writes its samples."""
        if family.name in HISTOGRAMS:
            return self._histograms(family)
        rows = [
            (self._own(series, engine), value, self._value(series, engine))
            for series, _, value in (sample.rpartition(" ") for sample in family.samples)
            for engine in range(len(self._ranks) if 'engine="0"' in series else 1)
        ]
        return lambda: [f"{own} {value if read is None else number(read())}" for own, value, read in rows]

    def _own(self, series: str, engine: int) -> str:
        """The series with the labels of this server's engine."""
        config = self._config
        usable = config.block_size * config.num_blocks
        own = {"engine": engine, "model_name": config.model_name}
        if series.startswith("vllm:cache_config_info"):
            own |= {
                "block_size": config.block_size,
                "effective_attention_block_size": config.block_size,
                "gpu_memory_utilization": config.gpu_memory_utilization,
                "kv_cache_max_concurrency": usable / config.max_model_len,
                "kv_cache_memory_bytes": config.cache_memory_bytes,
                "kv_cache_size_tokens": usable,
                # With several ranks it is their sum, as seen on a real page.
                "num_gpu_blocks": config.num_blocks * config.ranks,
                "num_gpu_blocks_override": None,
            }
        return re.sub(rf'\b({"|".join(own)})="[^"]*"', lambda found: f'{found[1]}="{own[found[1]]}"', series)

    def _value(self, series: str, engine: int) -> Callable[[], float] | None:
        """What is simulated of a series; None for one of which nothing is."""
        name, labels = _parts(series)
        if name.endswith("_created"):
            return lambda: self._started + CREATED_SECONDS
        if name == "process_start_time_seconds":
            return lambda: self._started
        if name == "http_requests_total":
            return lambda: self._frontend.answers
        own = [label for label in labels if not label.startswith(("engine=", "model_name="))]
        key, stats = SCALARS.get(_braced(name, own)), self._ranks[engine].stats
        if key is None:
            return None
        return (lambda: getattr(stats, key)) if hasattr(stats, key) else (lambda: stats.counters[key])

    def _histograms(self, family: Family) -> Callable[[], list[str]]:
        """With the bounds of this server's own; the sum before or after the buckets, as recorded."""
        sum_first = family.samples[0].startswith(f"{family.name}_sum")
        rows = []
        for engine, rank in enumerate(self._ranks):
            histogram = rank.stats.histograms[HISTOGRAMS[family.name]]
            own = [f'engine="{engine}"', f'model_name="{self._config.model_name}"']
            bounds = (sorted([*own, f'le="{number(bound)}"']) for bound in histogram.bounds)
            rows.append((histogram, [_braced(f"{family.name}_bucket", labels) for labels in bounds], own))

        def lines() -> list[str]:
            found = []
            for histogram, series, own in rows:
                counts = histogram.cumulative()
                buckets = [f"{bucket} {number(count)}" for bucket, count in zip(series, counts, strict=True)]
                total = f"{_braced(f'{family.name}_sum', own)} {number(histogram.sum)}"
                count = f"{_braced(f'{family.name}_count', own)} {number(counts[-1])}"
                found += [total, *buckets, count] if sum_first else [*buckets, count, total]
            return found

        return lines


def _parts(series: str) -> tuple[str, list[str]]:
    """The name of a series, and its labels, none of whose values has a comma."""
    name, _, labels = series.partition("{")
    return name, labels.rstrip("}").split(",") if labels else []


def _braced(name: str, labels: Sequence[str]) -> str:
    return f"{name}{{{','.join(labels)}}}" if labels else name
