"""One engine as the manifests describe it, whatever kind of object it is in, and its requested number of pods."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from kvpressure.config.strict_yaml import Path
from kvpressure.launch import Reading
from kvpressure.runtimes.runtime import Runtime
from kvpressure.runtimes.starting import Chart
from kvpressure_planner.audit.deployers import UNKNOWN, Deployer
from kvpressure_planner.audit.manifests import Item, Manifests, get, text
from kvpressure_planner.audit.model import Finding, Place

_LONGEST_NAME = 80
_LONGEST_NUMBER = 9

Style = Literal["args", "shell", "values", "env", "kwargs", "config"]
"""How a flag is written there: as an argument, in a shell script, as a chart's value, in a variable, as a keyword
argument of the engine, or in its configuration file."""


@dataclass(frozen=True, slots=True)
class Replicas:
    """The requested number of pods, None where that cannot be read; `why` is the sentence, "" where none is stated.

    `place` is where the number stands, or would, under the name `key`, which is "" where a number alone would not do;
    `ceiling` is what an autoscaler may go up to.
    """

    count: int | None
    why: str
    place: Place | None = None
    key: str = "replicas"
    ceiling: int | None = None


@dataclass(frozen=True, slots=True)
class Resources:
    """What an engine gets beside its command; `memory` of the host, as "requests" and "limits".

    `gpu` is the GPU's name as written, `gpus` how many are given under `gpu_key` (or a word of `deployers`, None where
    that is not known) on each of as many `machines` as one replica takes. `shared_memory` is what makes /dev/shm larger
    ("" for nothing, None where that is not known). `requested` are a pod's resources, `at` is the path where all that
    stands, `deployer` is who gives what is not named.
    """

    memory: Mapping[str, str] = field(default_factory=dict)
    at: Path = ()
    requested: Mapping[str, Any] = field(default_factory=dict)
    gpu: str = ""
    gpus: int | str | None = None
    gpu_key: str = "count"
    shared_memory: str | None = None
    machines: int = 1
    deployer: Deployer = UNKNOWN


@dataclass(frozen=True, slots=True)
class Probe:
    """A probe that restarts the container: "startupProbe" or "livenessProbe", its values, and where it is."""

    kind: str
    values: Mapping[str, Any]
    place: Place


@dataclass(frozen=True, slots=True)
class Engine:
    """A start of an engine. `at` is its path in its object, `pod` that of the pod's metadata, `image` as written.

    `reading` are the limits and options that it declares, in a `style`. `mounted` maps paths of configuration files in
    the container to the ConfigMap and the path they come from; `behind` is a template in another object whose arguments
    come before these; `chart` is the one whose values these are. `probes` are those that restart it, the one that
    counts first; `scraped` says that its chart has it scraped; `findings` are the verdicts on it, in the order of the
    checks.
    """

    item: Item
    title: str
    container: str
    at: Path
    pod: Path
    reading: Reading
    resources: Resources
    replicas: Replicas
    probes: tuple[Probe, ...] = ()
    has_readiness_probe: bool = False
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    scraped: bool | None = None
    style: Style = "args"
    mounted: Mapping[str, tuple[Item, Path]] = field(default_factory=dict)
    behind: tuple[Item, Path] | None = None
    chart: Chart | None = None
    model: str = ""
    image: str = ""
    findings: tuple[Finding, ...] = ()
    _places: dict[str, Place] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def namespace(self) -> str:
        """The namespace, "" where the manifest leaves it open."""
        return self.item.namespace

    @property
    def place(self) -> Place:
        """Where the start begins."""
        return self.item.place(self.at)

    def arguments_place(self) -> Place:
        """Return where flags are written, or would be."""
        config = () if self.chart is None else (self.chart.config,)
        names = {"values": config, "env": ("env",), "kwargs": ("engine_kwargs",)}.get(self.style, ("args", "command"))
        return self._first_place(*((*self.at, name) for name in names), self.at)

    @property
    def runtime(self) -> Runtime:
        """The runtime whose options its command line has."""
        return self.reading.runtime

    def limit_place(self, limit: str) -> Place:
        """Return the line that sets a limit, by its name, or where it would be."""
        return self.option_place(self.runtime.starting.flags.option(limit))

    def option_place(self, option: str) -> Place:
        """Return the line that sets `option` (without dashes), in the container or in its configuration file."""
        if option not in self._places:  # several checks are about one option, and looking for its line is slow
            self._places[option] = self._find_option(option)
        return self._places[option]

    def _find_option(self, option: str) -> Place:
        given = self.reading.options.get(option)
        if given is None:
            return self.arguments_place()
        # --max-num-seqs, --max_num_seqs, maxNumSeqs, and the beginning that was written.
        words = "[-_]?".join(map(re.escape, option.split("-")))
        short = re.escape(re.split(r"[=\s:]", given.written, maxsplit=1)[0][:_LONGEST_NAME]) or words
        pattern = re.compile(f"{words}|{short}", re.IGNORECASE)
        own = self.mounted.get(given.file, (self.item, self.at)) if given.file else (self.item, self.at)
        for item, path in (own, *([self.behind] if self.behind else ())):
            if (line := item.find(pattern, path)) is not None:
                return Place(item.source.name, line)
        return self.arguments_place()

    def annotation_place(self, name: str) -> Place:
        """Return the line of an annotation, or where it would be."""
        outer = (*self.pod, "annotations")
        return self._first_place((*outer, name), ("metadata", "annotations", name), outer, self.pod)

    def _first_place(self, *paths: Path) -> Place:
        """Return the place of the first path that is written in the file, else of the last."""
        written = (path for path in paths if (*self.item.at, *path) in self.item.source.lines)
        return self.item.place(next(written, paths[-1]))


def replicas(item: Item, path: Path, given: Manifests) -> Replicas:
    """Return the number of pods: of the autoscaler in `given` that targets the object, else the number at `path`."""
    for scaler in given.of("HorizontalPodAutoscaler", "ScaledObject"):
        reference = get(scaler.data, "spec", "scaleTargetRef")
        # KEDA's default kind is Deployment; a HorizontalPodAutoscaler has to name it.
        target = text(get(reference, "kind")) or "Deployment", text(get(reference, "name"))
        if target == (item.kind, item.name) and (not item.namespace or scaler.namespace in {"", item.namespace}):
            low = "minReplicas" if scaler.kind == "HorizontalPodAutoscaler" else "minReplicaCount"
            return scaled(scaler, ("spec",), (low, low.replace("min", "max")), f"{scaler.kind} {scaler.name}")
    return counted(item, path)


def counted(item: Item, path: Path) -> Replicas:
    """Return a plain number of pods; absent means one."""
    value, key = get(item.data, *path), str(path[-1])
    if value is None:
        return Replicas(1, f"{key} is not set, which means 1", item.place(path), key)
    count = _count(value)
    why = f"{key}: {text(value)}" if count is not None else f"{key} is {text(value)!r}, which is not a number"
    return Replicas(count, why, item.place(path), key)


def scaled(item: Item, at: Path, names: tuple[str, str], who: str) -> Replicas:
    """Return the bounds of an autoscaler: at least one pod unless it says otherwise."""
    low, high = (get(item.data, *at, name) for name in names)
    floor, ceiling = 1 if low is None else _count(low), _count(high)
    bounds = " to ".join("an unknown number of" if bound is None else str(bound) for bound in (floor, ceiling))
    why = f"{who} keeps {bounds} pods"
    return Replicas(floor, why, item.place((*at, names[0])), names[0], ceiling)


def _count(value: Any) -> int | None:
    if isinstance(value, str):
        return int(value) if value.isascii() and value.isdecimal() and len(value) <= _LONGEST_NUMBER else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None
