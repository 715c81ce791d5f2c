"""One engine's case: everything that advice is computed from, where it runs, and what several actions ask of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from kvpressure.advice.workload import demands_of, desired_replicas
from kvpressure.config.thresholds import Thresholds
from kvpressure.model.limits import KV_DTYPE, SMALL_KV_BITS, Limits
from kvpressure.model.record import record
from kvpressure.model.samples import HistogramSample
from kvpressure.model.values import Derived, at, number, quantile
from kvpressure.model.verdict import Cause, Diagnosis, Stage
from kvpressure.model.view import DecodeEngine, Observed, Peer, role_of
from kvpressure.runtimes.registry import named
from kvpressure.runtimes.runtime import Advice


@dataclass(frozen=True, slots=True)
class Place:
    """Where an engine runs, as far as known; every name may come from outside and is quoted before it is used.

    `runtime` is the name of what serves, "" when not known, and decides how flags are written. `kubernetes` is None
    when not known: then commands for both ways of running are given. `kind` is the workload's kind for kubectl
    (`deploy`, `statefulset`, ...), `url` is the address at which the engine is reached.
    """

    kubernetes: bool | None = None
    namespace: str = ""
    kind: str = "deploy"
    workload: str = ""
    pod: str = ""
    container: str = ""
    unit: str = ""
    port: int | None = None
    url: str = ""
    target: str = ""
    model_name: str = ""
    runtime: str = ""

    @property
    def advice(self) -> Advice:
        """The runtime's words and flags for advice."""
        return named(self.runtime).advice

    @property
    def title(self) -> str:
        """The runtime's name, for messages."""
        return named(self.runtime).title

    @property
    def serving_port(self) -> int:
        """The port of the engine's API, or its default."""
        return self.port or self.advice.server.port

    @property
    def in_kubernetes(self) -> bool | None:
        """Whether it runs in Kubernetes: set, or inferred from a name that only Kubernetes gives; None if not known."""
        if self.kubernetes is not None:
            return self.kubernetes
        return True if self.namespace or self.workload or self.pod else False if self.unit else None


@record
class RequestLengths:
    """Lengths in tokens of prompts and answers. `recent` is False when they are those since the server's start."""

    prompt_p50: float
    prompt_p95: float
    output_p50: float
    output_p95: float
    recent: bool

    def request_p95(self, longest: float | None) -> float:
        """Return the p95 of the tokens that a request holds at its end, at most the longest one allowed.

        Long prompts seldom get the long answers: where the two have nothing to do with each other, what a request holds
        beyond the typical one grows with the root of the sum of both squares, and not with the sum.
        """
        beyond = math.hypot(self.prompt_p95 - self.prompt_p50, self.output_p95 - self.output_p50)
        return min(self.prompt_p50 + self.output_p50 + beyond, longest or math.inf)


def shape_of(derived: Derived) -> RequestLengths | None:
    """Return lengths over the long window, else since the server's start while too few finished; None without both."""
    recent = [at(derived, family, q) for family in ("prompt_tokens", "output_tokens") for q in ("0.5", "0.95")]
    if (shape := _shape(recent, recent=True)) is not None:
        return shape
    found = (derived.get("request_prompt_tokens"), derived.get("request_output_tokens"))
    histograms = [one for one in found if isinstance(one, HistogramSample)]
    return _shape([quantile(histogram, q) for histogram in histograms for q in (0.5, 0.95)], recent=False)


def _shape(values: list[float | None], *, recent: bool) -> RequestLengths | None:
    numbers = [value for value in values if value is not None and value > 0]
    return RequestLengths(numbers[0], numbers[1], numbers[2], numbers[3], recent) if len(numbers) == 4 else None


def fits(capacity_tokens: float, tokens_each: float) -> int:
    """Return how many requests of `tokens_each` the pool holds together."""
    return int(capacity_tokens // tokens_each)


def round_up_tokens(tokens: float) -> int:
    """Return tokens rounded up to two significant digits.

    >>> round_up_tokens(937), round_up_tokens(3412), round_up_tokens(64)
    (940, 3500, 64)
    """
    unit = 10.0 ** max(0, math.floor(math.log10(max(1.0, tokens))) - 1)
    return int(math.ceil(tokens / unit) * unit)


@dataclass(frozen=True)
class Sizing:
    """What an engine's pool holds of its traffic, and which memory target fits it."""

    diagnosis: Diagnosis
    derived: Derived
    limits: Limits
    thresholds: Thresholds

    def symptom(self, name: str) -> bool | None:
        """Return the state of a symptom, None when it could not be judged."""
        evidence = self.diagnosis.symptoms.get(name)
        return None if evidence is None else evidence.state

    @property
    def device_oom(self) -> bool:
        """Whether there is evidence that the GPU itself ran out of memory."""
        return self.symptom("device_oom") is True

    @cached_property
    def shape(self) -> RequestLengths | None:
        """Lengths of prompts and answers."""
        return shape_of(self.derived)

    @property
    def capacity(self) -> float | None:
        """Tokens of the KV pool."""
        return self.limits.kv_capacity_tokens.value if self.limits.kv_capacity_tokens else None

    @property
    def request_p95(self) -> float | None:
        """Tokens that a request holds at its end, p95."""
        longest = self.limits.max_model_len.value if self.limits.max_model_len else None
        return self.shape.request_p95(longest) if self.shape else None

    @property
    def long_or_bursty(self) -> str:
        """Why the smaller memory target applies, as text; "" when it does not."""
        prompt, burst = at(self.derived, "prompt_tokens", "0.95"), at(self.derived, "arrival_burstiness_ratio")
        if prompt is not None and prompt >= self.thresholds.advice.long_context_min_tokens:
            return f"prompts are long (p95 {number(prompt)} tokens)"
        if burst is not None and burst >= self.thresholds.advice.bursty_min_factor:
            return f"requests come in bursts (peak {burst:.1f} times the mean)"
        return ""

    @property
    def usual_target(self) -> float:
        """The playbook's `gpu_memory_utilization` against device OOM: lower for long prompts or bursts."""
        t = self.thresholds
        return t.advice.memory_target_long_context_ratio if self.long_or_bursty else t.advice.memory_target_ratio

    @cached_property
    def memory_target(self) -> float | None:
        """The new `gpu_memory_utilization`; None to leave it. Lower only against a device OOM, higher only without.

        Never so low that the pool could not hold one longest request: the server would not start.
        """
        limit = self.limits.gpu_memory_utilization
        if self.device_oom:
            target = self.usual_target
            if limit is None:
                return target
            target = max(target, self.lowest_target or 0.0)
            return target if limit.value - target >= self.thresholds.advice.memory_step_min_ratio else None
        return None if limit is None else self._raised(limit.value)

    @property
    def lowest_target(self) -> float | None:
        """The share below which the pool is sure not to hold one longest request; None where that is not known.

        The pool loses at least its share of what the target gives up (`pool_change`), so it may be higher, never lower.
        """
        limit, capacity = self.limits.gpu_memory_utilization, self.capacity
        longest = self.limits.max_model_len
        if limit is None or not capacity or longest is None:
            return None
        return math.ceil(100 * limit.value * longest.value / capacity - 1e-6) / 100

    def _raised(self, current: float) -> float | None:
        used = at(self.derived, "engine_gpu_memory_used_ratio")
        if used is None or self.symptom("memory_rising") is True:
            return None
        free = self.thresholds.gpu.memory_high_warn_ratio - used
        new = int(100 * min(current + free, self.thresholds.gpu.memory_high_critical_ratio) + 1e-6) / 100
        return new if new - current >= self.thresholds.advice.memory_step_min_ratio else None

    def pool_change(self, target: float) -> float | None:
        """Return the tokens that the pool at least loses or gains with another memory target; None if not known.

        The pool is what the target leaves after weights and activations, so device memory is more than pool / target,
        and every point of the target moves at least that share of it.
        """
        limit, capacity = self.limits.gpu_memory_utilization, self.capacity
        return None if limit is None or capacity is None else capacity * abs(target - limit.value) / limit.value

    @property
    def pool_after(self) -> float | None:
        """Tokens of the pool once a lower memory target is in force; a higher one is not assumed."""
        limit, capacity = self.limits.gpu_memory_utilization, self.capacity
        if not self.device_oom:
            return capacity
        target = self.memory_target
        if capacity is None or limit is None or target is None or target > limit.value:
            return capacity
        return capacity - (self.pool_change(target) or 0.0)

    @property
    def room(self) -> int | None:
        """How many requests fit the pool at p95 of their tokens."""
        pool, each = self.pool_after, self.request_p95
        return fits(pool, each) if pool and each else None


@dataclass(frozen=True)
class Case(Sizing):
    """A diagnosis with the numbers behind it and what is known of limits, place and traffic."""

    place: Place
    observed: Observed | None = None
    peers: Sequence[Peer] = ()
    standing: tuple[str, float | None] = ("", None)
    """Key and value of the change that stands as the first step; ("", None) where none does."""
    decode_side: Sequence[DecodeEngine] = ()
    """The engines that read what this one computes, where it is a prefill engine and they are known."""

    @property
    def own(self) -> Advice:
        """The words and flags of the engine's runtime."""
        return self.place.advice

    @property
    def role(self) -> str:
        """What it does where prefill and decode are apart, "" where that is not known."""
        return role_of(self.derived)

    @property
    def at_gateway(self) -> bool:
        """Whether requests wait at a gateway, and not in the engine."""
        return self.diagnosis.detail == "held_at_gateway"

    @property
    def crashing(self) -> bool:
        """Whether the server dies and restarts."""
        signs = ("restarting", "host_oom", "device_oom")
        return self.diagnosis.stage is Stage.FAILING or any(self.symptom(sign) is True for sign in signs)

    @property
    def replicas(self) -> int | None:
        """The replicas for each one now that `kvpressure_desired_replicas` counts; 1 where no more are needed.

        None where that does not measure what holds requests up, or nothing does.
        """
        demand = demands_of(self.derived)
        counted = desired_replicas(demand, self.thresholds)
        measured = self.diagnosis.cause is Cause.KV_CACHE_PRESSURE and "kv_tokens" in demand
        return counted if measured or (counted or 1) > 1 else None

    @property
    def small_kv_helps(self) -> bool:
        """Whether a flag of the runtime keeps the KV cache in 8 bits, and it is not known to be in as few already."""
        bits = None if self.observed is None else self.observed.cache.kv_bits
        return KV_DTYPE in self.own.flags.limits and (bits is None or bits > SMALL_KV_BITS)

    def shown(self, name: str) -> str:
        """Return a limit in force as text, or what the runtime takes where none is visible."""
        limit = getattr(self.limits, name)
        return f"not visible ({self.own.words.unset[name]})" if limit is None else str(limit)
