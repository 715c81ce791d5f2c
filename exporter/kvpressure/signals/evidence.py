"""Evidence of failures beside an engine's numbers: its container, its log, its host, and how often it started."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kvpressure.config.thresholds import Thresholds
from kvpressure.model.environment import ContainerId, ContainerState, Environment, LogReport
from kvpressure.model.record import record

SAME_START_SECONDS = 0.5
MAX_STARTS = 16
LATELY_SECONDS = 600.0
OOM_KILLED = "OOMKilled"
CRASH_LOOP = "CrashLoopBackOff"
NODE = ContainerId("", "", "")
MEMORY_EVENTS = ("Evicted", "EvictionThresholdMet", "NodeHasInsufficientMemory", "OOMKilling", "SystemOOM")


@record
class OutsideEvidence:
    """Whether a symptom is there, None where that is not known, and the sentence that says why."""

    state: bool | None
    text: str


@dataclass(slots=True)
class Restarts:
    """When the restart count of each container grew, over the last ten minutes.

    A new pod with the name of an old one begins at 0.
    """

    _counts: dict[ContainerId, tuple[str, int]] = field(default_factory=dict)
    _times: dict[ContainerId, list[float]] = field(default_factory=dict)

    def update(self, now: float, containers: Mapping[ContainerId, ContainerState]) -> None:
        """Take the newest states in; containers that are gone are forgotten."""
        times = {}
        for key, state in containers.items():
            uid, before = self._counts.get(key, ("", 0))
            same = key in self._counts and uid == state.pod_uid
            # A count that jumps by dozens was not watched; a handful says as much and stays small.
            grown = min(MAX_STARTS, max(0, state.restarts - before)) if same else 0
            times[key] = [t for t in self._times.get(key, ()) if same and now - t <= LATELY_SECONDS] + [now] * grown
        self._times = times
        self._counts = {key: (state.pod_uid, state.restarts) for key, state in containers.items()}

    def lately(self, key: ContainerId) -> int:
        """Return the number of restarts in the last ten minutes, 16 at most at a time."""
        return len(self._times.get(key, ()))


def outside_evidence(
    now: float, key: ContainerId, environment: Environment, restarts: int, thresholds: Thresholds
) -> Mapping[str, OutsideEvidence]:
    """Return the symptoms of one container that other sources than its page show; without a key where unknown."""
    symptoms: dict[str, OutsideEvidence] = {}
    state, report = environment.containers.get(key), environment.logs.get(key)
    # A state that the API server has not confirmed for long may be another one by now.
    if state is not None and _recent(now, state.t, thresholds):
        symptoms |= _container(now, state, restarts, environment, thresholds)
    if report is not None:
        symptoms["device_oom"] = _logged(now, report, "device_oom", "GPU out of memory", thresholds)
        symptoms["allocation_errors"] = _logged(now, report, "kv_exhausted", "KV cache too small", thresholds)
        killed = _logged(now, report, "host_oom", "host out of memory", thresholds)
        # No line of it is no evidence against it: the kernel kills without one.
        symptoms |= {"host_oom": killed} if killed.state else {}
    if (pressed := _cpu(key, environment, thresholds)) is not None:
        symptoms["cpu_pressed"] = pressed
    return symptoms


def _container(
    now: float, state: ContainerState, restarts: int, environment: Environment, thresholds: Thresholds
) -> Mapping[str, OutsideEvidence]:
    ended, how = state.termination, _ended(now, state)
    restarting = state.waiting_reason == CRASH_LOOP or restarts >= thresholds.symptoms.restarting_min_count
    killed = ended is not None and ended.reason == OOM_KILLED and _recent(now, ended.finished, thresholds)
    node = _node(now, state, environment, thresholds)
    return {
        "restarting": OutsideEvidence(
            restarting, f"container restarts: {restarts} in ten minutes, {state.restarts} in all{how}"
        ),
        "host_oom": OutsideEvidence(killed, f"container's last end{how or ': none'}{node}"),
    }


def _ended(now: float, state: ContainerState) -> str:
    ended = state.termination
    if ended is None:
        return ""
    ago = "" if ended.finished is None else f", {max(0.0, now - ended.finished) / 60:.0f} min ago"
    return f": {ended.reason} (exit code {ended.exit_code}{ago})"


def _node(now: float, state: ContainerState, environment: Environment, thresholds: Thresholds) -> str:
    """Return what the node and the events of the pod say beside it."""
    events = [environment.events[key] for key in (state.id, NODE) if key in environment.events]
    reasons = {
        reason
        for event in events
        for reason, t in event.latest.items()
        if reason in MEMORY_EVENTS and _recent(now, t, thresholds)
    }
    pressure = "; the node has MemoryPressure" if environment.memory_pressure else ""
    return pressure + "".join(f"; event {reason}" for reason in sorted(reasons))


def _logged(now: float, report: LogReport, kind: str, what: str, thresholds: Thresholds) -> OutsideEvidence:
    latest = report.latest.get(kind)
    if latest is None or not _recent(now, latest, thresholds):
        return OutsideEvidence(False, f"engine's log: no line says {what}")
    ago = f"{max(0.0, now - latest) / 60:.0f} min ago"
    return OutsideEvidence(True, f"engine's log, {ago}: {report.lines.get(kind) or what}")


def _recent(now: float, t: float | None, thresholds: Thresholds) -> bool:
    """Whether something happened lately; without a time, its source observed it just now."""
    return t is None or now - t <= thresholds.symptoms.failure_recent_max_seconds


def _cpu(key: ContainerId, environment: Environment, thresholds: Thresholds) -> OutsideEvidence | None:
    host = environment.host
    if host is None:
        return None
    readings = (
        ("tasks waiting for a CPU", host.cpu_pressure_ratio, thresholds.alert.cpu_pressure_min_ratio),
        ("throttled periods", host.throttled_ratio.get(key), thresholds.alert.cpu_throttled_min_ratio),
    )
    known = [(text, value, least) for text, value, least in readings if value is not None]
    if not known:
        return None
    pressed = any(value >= least for _, value, least in known)
    return OutsideEvidence(pressed, ", ".join(f"{text}: {value:.0%}" for text, value, _ in known))


class Starts:
    """The newest restarts of each target's server."""

    def __init__(self) -> None:
        self._started: dict[str, float] = {}
        self._restarts: dict[str, deque[float]] = {}

    def restarted(self, target: str, started: float | None) -> bool:
        """Take in when the server that answered was started; return whether that differs from the time before."""
        if started is None:
            return False
        before = self._started.get(target)
        self._started[target] = started
        again = before is not None and abs(started - before) > SAME_START_SECONDS
        restarts = self._restarts.setdefault(target, deque(maxlen=MAX_STARTS))
        if again:
            restarts.append(started)
        return again

    def lately(self, target: str, now: float) -> int | None:
        """Return the restarts in the last ten minutes; None for a server whose page does not say when it started."""
        restarts = self._restarts.get(target)
        return None if restarts is None else sum(now - t <= LATELY_SECONDS for t in restarts)

    def forget(self, targets: Iterable[str]) -> None:
        """Drop everything of targets that are gone."""
        for target in targets:
            self._started.pop(target, None)
            self._restarts.pop(target, None)
