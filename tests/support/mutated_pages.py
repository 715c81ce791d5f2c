"""Stories of an engine whose counters do what no counter does, and what must hold of our own page after each."""

import math
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as strict_families
from prometheus_client.parser import text_string_to_metric_families as plain_families

from kvpressure.cli.replay import ReplayTarget
from kvpressure.config.thresholds import load_thresholds
from kvpressure.engine_state import Pipeline, PipelineSettings
from kvpressure.engines.reader import PageReader
from kvpressure.exposition import Snapshot, text
from kvpressure.promtext.lines import PageError
from tests.support.pages import single

THRESHOLDS = load_thresholds()
BASE = [
    line
    for line in single("vllm-0.32.0-two-ranks.prom").decode().splitlines()
    if (line.startswith("#") or re.match(r"vllm:|process_start", line)) and 'engine="1"' not in line
]
STRANGE = (
    *("NaN", "+Inf", "-Inf", "-1", "-0", "-1e308", "0", "0.5", "5e-324", "1e-9", "1e308", "1e300", "1e154", "1e19"),
    *("9007199254740992", "9007199254740993", "9223372036854775808", "4294967296", "1.7976931348623157e308", "1e999"),
)
BOUNDS = ("0.1", "1", "1.0", "3", "10", "1e3", "1e308", "-5", "0", "NaN", "-Inf", "Inf", "+Inf", "x")
FAULTS = (
    *("strange", "strange", "backwards", "reset", "jump", "drop", "drop family", "twice", "bounds", "shuffle", "swap"),
    *("strange of a kind", "drop infinity", "labels"),
)


@dataclass
class Page:
    """Lines with their values, which grow like those of an engine that works."""

    random: Random
    series: dict[str, float | str] = field(default_factory=dict)
    extra: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for line in BASE:
            name, _, value = line.rpartition(" ")
            if not line.startswith("#"):
                self.series[name] = float(value)

    def grow(self) -> None:
        """One poll later: each histogram got some observations, each counter grew."""
        steps: dict[str, float] = defaultdict(lambda: float(self.random.randrange(6)))
        for name, value in self.series.items():
            if not isinstance(value, float) or not math.isfinite(value):
                continue
            if match := re.match(r"(\S+?)_(bucket|count|sum)\{(.*)\}", name):
                self.series[name] = value + steps[match[1] + re.sub(r',?le="[^"]*"', "", match[3])]
            elif "_total" in name:
                self.series[name] = value + self.random.randrange(50)
            elif "num_requests" in name:
                self.series[name] = float(self.random.randrange(30))

    def fault(self, kind: str) -> None:  # noqa: C901, PLR0912 - a list of what may happen
        """Something that no server does."""
        random, names = self.random, list(self.series)
        if not names:
            return
        one = random.choice(names)
        family = re.sub(r"(_bucket|_count|_sum)?\{.*", "", one)
        related = [name for name in names if name.startswith(family)]
        value = self.series[one]
        if kind == "strange":
            self.series[one] = random.choice(STRANGE)
        elif kind == "strange of a kind":
            end, strange = random.choice(("_bucket", "_sum", "_count", "_total")), random.choice(STRANGE)
            self.series |= {name: strange for name in related if end in name}
        elif kind == "backwards" and isinstance(value, float):
            self.series[one] = value - random.choice((1.0, 7.0, value, 2 * value))
        elif kind == "reset":
            self.series |= dict.fromkeys(related, 0.0)
        elif kind == "jump" and isinstance(value, float):
            self.series[one] = value + random.choice((1e6, 1e12, 2.0**53, 2.0**63, 1e300))
        elif kind == "drop":
            del self.series[one]
        elif kind == "drop family":
            self.series = {name: value for name, value in self.series.items() if name not in related}
        elif kind == "drop infinity":
            self.series = {n: v for n, v in self.series.items() if n not in related or 'le="+Inf"' not in n}
        elif kind == "twice":
            self.extra = [f"{one} {random.choice(STRANGE)}", *self.extra[:3]]
        elif kind == "bounds":
            for name in related:
                if "le=" in name and random.random() < 0.5:
                    self.series[re.sub(r'le="[^"]*"', f'le="{random.choice(BOUNDS)}"', name)] = self.series.pop(name)
        elif kind == "shuffle":
            values = [self.series[name] for name in related]
            random.shuffle(values)
            self.series |= dict(zip(related, values, strict=True))
        elif kind == "swap":
            other = random.choice(names)
            self.series[one], self.series[other] = self.series[other], self.series[one]
        elif kind == "labels":
            changed = re.sub(r'(reason|position|model_name|engine)="[^"]*"', rf'\1="{random.choice(BOUNDS)}"', one)
            self.series[changed] = self.series.pop(one)

    def text(self) -> bytes:
        """As served, under the headers of its families."""
        lines = [line for line in BASE if line.startswith("#")]
        by_family: dict[str, list[str]] = defaultdict(list)
        for name, value in self.series.items():
            shown = value if isinstance(value, str) else repr(value)
            by_family[re.sub(r"(_bucket|_count|_sum|_created)?\{.*", "", name)].append(f"{name} {shown}")
        return "\n".join([*lines, *(line for some in by_family.values() for line in some), *self.extra, ""]).encode()


def story(seed: int) -> Iterator[Snapshot]:
    """Snapshots of the pipeline that `run` uses, now and then while a seeded story is polled."""
    random = Random(seed)
    page, reader = Page(random), PageReader()
    pipeline, target, t = Pipeline(PipelineSettings(), THRESHOLDS), ReplayTarget("t"), 1.8e9
    kept: Page | None = None
    for poll in range(polls := random.choice((4, 7, 12))):
        page.grow()
        if poll and random.random() < 0.5:
            for _ in range(random.choice((1, 1, 2, 8))):
                page.fault(random.choice(FAULTS))
        if random.random() < 0.1:
            kept, page = Page(random, dict(page.series)), kept or page
        t += random.choice((1.0, 1.0, 1.0, 1.0, 0.2, 5.0, 30.0, 70.0, -3.0))
        try:
            pipeline.on_page(target, reader.read(page.text(), t))
        except PageError:
            continue
        pipeline.expire(t)
        if poll == polls - 1:
            yield Snapshot(t, engines=pipeline.engine_views(t), silent=pipeline.silent_views(t))


def check(snapshot: Snapshot) -> int:
    """Hold both formats against the strict parsers and the rules of counters and histograms; gives the samples seen."""
    families = list(strict_families(text.render(snapshot, openmetrics=True).decode()))
    plain = list(plain_families(text.render(snapshot, openmetrics=False).decode()))
    seen = 0
    for page in (families, plain):
        known: set[object] = set()
        for family in page:
            for sample in family.samples:
                identity = (sample.name, tuple(sorted(sample.labels.items())))
                assert identity not in known, f"twice: {identity}"
                known.add(identity)
                if family.type == "counter":
                    assert 0 <= sample.value < math.inf, sample
                seen += 1
            if family.type == "histogram":
                _check_histogram(family)
    return seen


def _check_histogram(family: Metric) -> None:
    """Each of its series: buckets rise with their bounds, the last is +Inf and the count, the sum is a number."""
    buckets: dict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = defaultdict(list)
    ends: dict[tuple[tuple[str, str], ...], dict[str, float]] = defaultdict(dict)
    for sample in family.samples:
        labels = tuple(sorted((name, value) for name, value in sample.labels.items() if name != "le"))
        if sample.name.endswith("_bucket"):
            buckets[labels].append((float(sample.labels["le"]), sample.value))
        else:
            ends[labels][sample.name.removeprefix(family.name)] = sample.value
    assert buckets.keys() == ends.keys()
    for labels, found in buckets.items():
        bounds, counts = zip(*found, strict=True)
        assert list(bounds) == sorted(set(bounds)), (family.name, bounds)
        assert bounds[-1] == math.inf, (family.name, bounds)
        assert list(counts) == sorted(counts), (family.name, counts)
        assert 0 <= counts[0] <= counts[-1] == ends[labels]["_count"] < math.inf, (family.name, counts, ends[labels])
        assert 0 <= ends[labels]["_sum"] < math.inf, (family.name, ends[labels])


def main(first: int, count: int) -> None:
    """Tell many stories and print what falls."""
    fallen, samples = 0, 0
    for seed in range(first, first + count):
        try:
            samples += sum(map(check, story(seed)))
        except Exception as error:  # noqa: BLE001 - every kind of fall is told
            fallen += 1
            print(seed, type(error).__name__, str(error)[:300])  # noqa: T201
    print(f"{count} stories, {samples} samples, {fallen} fell")  # noqa: T201


if __name__ == "__main__":
    import sys

    main(int(sys.argv[1]), int(sys.argv[2]))
