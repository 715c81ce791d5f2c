"""A rank's statistics as vLLM's page: text exposition with prometheus_client's number format and order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from bench.simulator.cache_config import cache_config_labels
from bench.simulator.config import EngineConfig
from bench.simulator.families import COUNTER, FAMILIES, HISTOGRAM, Family
from bench.simulator.frontend import Frontend
from bench.simulator.histograms import Histogram
from bench.simulator.process import process_lines
from bench.simulator.scheduler import Rank
from bench.simulator.text import braces, number

_HTTP = 'handler="/v1/completions"'
_HTTP_HELP = {
    "http_requests": "Total number of requests by method, status and handler.",
    "http_request_size_bytes": "Content length of incoming requests by handler. Only value of header is respected. "
    "Otherwise ignored. No percentile calculated. ",
    "http_response_size_bytes": "Content length of outgoing responses by handler. Only value of header is respected. "
    "Otherwise ignored. No percentile calculated. ",
    "http_request_duration_highr_seconds": "Latency with many buckets but no API specific labels. Made for more "
    "accurate percentile calculations. ",
    "http_request_duration_seconds": "Latency with only few buckets by handler. Made to be only used if aggregation by "
    "handler is important. ",
}
_REJECTIONS_HELP = "Number of admission attempts rejected by a queue limit, by reason."


class PageWriter:
    """Writes the pages of one server process started at unix time `started`.

    A multi-process page has no `_created` and no `process_*`, sums come before buckets, families are grouped by type,
    and the scheduler's gauges are missing until the first request.
    """

    def __init__(self, config: EngineConfig, ranks: Sequence[Rank], frontend: Frontend, started: float) -> None:
        self.sleep_level = 0
        self._config = config
        self._ranks = ranks
        self._frontend = frontend
        self._started = started
        self._multiprocess = config.multiprocess
        rows = [family for family in FAMILIES if family.in_0_12 or config.version != "0.12.0"]
        self._families = self._grouped(rows) if self._multiprocess else rows
        self._bucket_prefixes: dict[tuple[str, tuple[str, ...]], list[str]] = {}

    def page(self, now: float) -> bytes:
        """The full page at unix time `now`."""
        lines = [] if self._multiprocess else process_lines(self._started, now)
        kind = ""
        for family in self._families:
            if self._multiprocess and kind != family.kind:
                lines += self._http(kind)
                kind = family.kind
            lines += self._family(family)
            if family.name == "vllm:request_success_total":
                lines += self._rejections()
        lines += self._cache_config()
        lines += self._http("" if not self._multiprocess else "tail")
        return ("\n".join(lines) + "\n").encode()

    # -- families

    @staticmethod
    def _grouped(rows: list[Family]) -> list[Family]:
        return [row for kind in (COUNTER, HISTOGRAM, "gauge") for row in rows if row.kind == kind]

    def _family(self, family: Family) -> list[str]:
        ranks = [] if self._hides(family) else list(enumerate(self._ranks))
        if not ranks:
            return []
        lines = self._head(family.name, family.kind, family.help)
        if family.kind == HISTOGRAM:
            for engine, rank in ranks:
                lines += self._histogram(family.name, rank.stats.histograms[family.key], self._labels(engine))
        else:
            for extra, key in self._split(family):
                lines += [
                    f"{family.name}{braces(*self._labels(engine), extra)} {number(self._value(rank, key))}"
                    for engine, rank in ranks
                ]
        if family.kind != "gauge":
            labels = [(*self._labels(engine), extra) for extra, _ in self._split(family) for engine, _ in ranks]
            lines += self._created(family.name, family.kind, family.help, labels)
        return lines

    def _split(self, family: Family) -> list[tuple[str, str]]:
        if family.split is None:
            return [("", family.key)]
        label, values = family.split
        if self._config.version == "0.12.0" and label == "finished_reason":
            values = values[:3]
        return [(f'{label}="{value}"', key) for value, key in values]

    def _hides(self, family: Family) -> bool:
        """Gauges of a multi-process page appear with the first step."""
        if not self._multiprocess or family.kind != "gauge" or family.name == "vllm:engine_sleep_state":
            return False
        return not any(rank.stats.counters["steps"] or rank.running or rank.waiting for rank in self._ranks)

    def _value(self, rank: Rank, key: str) -> float:
        values: dict[str, Callable[[], float]] = {
            "running": lambda: rank.stats.running,
            "waiting": lambda: rank.stats.waiting,
            "usage": lambda: rank.stats.usage_ratio,
            "awake": lambda: self.sleep_level == 0,
            "weights_offloaded": lambda: self.sleep_level == 1,
            "discard_all": lambda: self.sleep_level == 2,
        }
        return values[key]() if key in values else rank.stats.counters[key]

    def _labels(self, engine: int) -> tuple[str, str]:
        return f'engine="{engine}"', f'model_name="{self._config.model_name}"'

    def _rejections(self) -> list[str]:
        if self._config.version == "0.12.0":
            return []
        name = "vllm:admission_rejections_total"
        labels = [
            (f'model_name="{self._config.model_name}"', f'reason="{reason}"')
            for reason in ("max_num_queued_reqs", "max_num_queued_tokens")
        ]
        lines = self._head(name, COUNTER, _REJECTIONS_HELP) + [f"{name}{braces(*label)} 0.0" for label in labels]
        return lines + self._created(name, COUNTER, _REJECTIONS_HELP, labels)

    def _cache_config(self) -> list[str]:
        name = "vllm:cache_config_info"
        samples = [f"{name}{{{cache_config_labels(self._config, engine)}}} 1.0" for engine in range(len(self._ranks))]
        return [*self._head(name, "gauge", "Information of the LLMEngine CacheConfig"), *samples]

    # -- HTTP

    def _http(self, after: str) -> list[str]:
        """The web server's families: all at the end, or in a multi-process page after those of their type."""
        if not self._frontend.answers:
            return []
        requests = self._http_family("http_requests_total", "counter", self._count_sample)
        sizes = self._sizes("request", self._frontend.request_bytes) + self._sizes(
            "response", self._frontend.response_bytes
        )
        durations = self._durations()
        parts = {"": [*requests, *sizes, *durations], COUNTER: requests, HISTOGRAM: durations, "tail": sizes}
        return [] if self._multiprocess and not after else parts[after]

    def _count_sample(self, name: str) -> Iterable[str]:
        yield f'{name}{{{_HTTP},method="POST",status="2xx"}} {number(self._frontend.answers)}'

    def _http_family(self, name: str, kind: str, samples: Callable[[str], Iterable[str]]) -> list[str]:
        text = _HTTP_HELP[name.removesuffix("_total")]
        labels = [(_HTTP, 'method="POST"', 'status="2xx"')]
        return [*self._head(name, kind, text), *samples(name), *self._created(name, kind, text, labels)]

    def _sizes(self, direction: str, total: float) -> list[str]:
        name = f"http_{direction}_size_bytes"
        lines = self._head(name, "summary", _HTTP_HELP[name])
        lines.append(f"{name}_count{{{_HTTP}}} {number(self._frontend.answers)}")
        lines.append(f"{name}_sum{{{_HTTP}}} {number(total)}")
        return lines + self._created(name, "summary", _HTTP_HELP[name], [(_HTTP,)])

    def _durations(self) -> list[str]:
        fine, coarse = "http_request_duration_highr_seconds", "http_request_duration_seconds"
        lines = self._head(fine, HISTOGRAM, _HTTP_HELP[fine]) + self._histogram(fine, self._frontend.fine_seconds, ())
        lines += self._created(fine, HISTOGRAM, _HTTP_HELP[fine], [()])
        labels = (_HTTP, 'method="POST"')
        lines += self._head(coarse, HISTOGRAM, _HTTP_HELP[coarse])
        lines += self._histogram(coarse, self._frontend.coarse_seconds, labels)
        return lines + self._created(coarse, HISTOGRAM, _HTTP_HELP[coarse], [labels])

    # -- lines

    @staticmethod
    def _head(name: str, kind: str, text: str) -> list[str]:
        return [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]

    def _created(self, name: str, kind: str, text: str, labels: Iterable[tuple[str, ...]]) -> list[str]:
        if self._multiprocess:
            return []
        created = (name.removesuffix("_total") if kind == COUNTER else name) + "_created"
        value = number(self._started + 30.0)
        return [*self._head(created, "gauge", text), *(f"{created}{braces(*label)} {value}" for label in labels)]

    def _histogram(self, name: str, histogram: Histogram, labels: tuple[str, ...]) -> list[str]:
        prefixes = self._bucket_prefixes.get((name, labels))
        if prefixes is None:
            bounds = [f'le="{number(bound)}"' for bound in histogram.bounds]
            prefixes = [f"{name}_bucket{braces(*labels, bound)} " for bound in bounds]
            self._bucket_prefixes[name, labels] = prefixes
        counts = histogram.cumulative()
        buckets = [f"{prefix}{number(count)}" for prefix, count in zip(prefixes, counts, strict=True)]
        total = f"{name}_sum{braces(*labels)} {number(histogram.sum)}"
        count = f"{name}_count{braces(*labels)} {number(counts[-1])}"
        return [total, *buckets, count] if self._multiprocess else [*buckets, count, total]
