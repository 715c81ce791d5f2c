"""Reads `--set NAME=VALUE`: flags by the names of the engine's runtime, caps, replicas, the pool."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final, NoReturn

import click

from kvpressure.commandline.options import TAKES, whole
from kvpressure.model.limits import KV_DTYPE, SMALL_KV_BITS, Limits
from kvpressure.runtimes.runtime import Runtime
from kvpressure.simulation import config_changes as to
from kvpressure.simulation.consequences import Model
from kvpressure.simulation.step_table import CardSteps

_READ_AS: Final = {"watermark": "kv_watermark_ratio"}


def names(runtime: Runtime) -> dict[str, str]:
    """Return the names that may be set, with their kind of change."""
    flags = runtime.advice.flags.limits
    return {own or flags[kind].lstrip("-"): kind for kind, (own, _) in _KINDS.items() if own or kind in flags}


def changes(
    given: Sequence[str],
    runtime: Runtime,
    limits: Limits,
    model: Model,
    onto: Callable[[str], to.ConfigChange] | None = None,
) -> list[to.ConfigChange]:
    """Return the changes in the order given. Raises click.UsageError for one that cannot be simulated or served.

    `onto` makes the change to another card, where the present card is known.
    """
    known, made = names(runtime), dict[str, to.ConfigChange]()
    for text in given:
        name, equals, value = text.partition("=")
        plain = name.strip().lstrip("-").replace("_", "-")
        if not equals or not value.strip():
            raise click.UsageError(f"--set {text}: give NAME=VALUE, such as --set {next(iter(known))}=16")
        if plain not in known:
            close = get_close_matches(plain, known, 1)
            hint = f"did you mean {close[0]}?" if close else f"what can: {', '.join(known)}"
            raise click.UsageError(f"--set {text}: {plain} cannot be simulated; {hint}")
        kind = known[plain]
        if kind in made:
            raise click.UsageError(f"--set {text}: {plain} is set twice")
        _, make = _KINDS[kind]
        made[kind] = make(_Given(text, value.strip(), kind, runtime, limits, model, onto))
    _check_start(list(made.values()), runtime, model)
    return list(made.values())


def written(change: to.ConfigChange, runtime: Runtime) -> str:
    """Return a change as NAME=VALUE."""
    name = next(name for name, kind in names(runtime).items() if kind == change.key)
    value = runtime.advice.flags.small_kv if change.key == KV_DTYPE else change.name or f"{change.value:.12g}"
    return f"{name}={value}"


@dataclass(frozen=True, slots=True)
class _Given:
    """One setting to read, and its context."""

    text: str
    value: str
    kind: str
    runtime: Runtime
    limits: Limits
    model: Model
    onto: Callable[[str], to.ConfigChange] | None

    def count(self) -> int:
        """Return a positive whole number."""
        count = whole(self.value)
        return int(count) if count is not None else self.refuse("give a whole number of 1 or more")

    def limit(self) -> float:
        """Return a limit, read as the server reads it."""
        _, read = self.runtime.starting.flags.limits[_READ_AS.get(self.kind, self.kind)]
        limit = read(self.value)
        return self.refuse(f"{self.runtime.title} takes {TAKES[read]} here") if limit is None else limit

    def refuse(self, why: str) -> NoReturn:
        """Raise click.UsageError."""
        raise click.UsageError(f"--set {self.text}: {why}")


def _memory(given: _Given) -> to.ConfigChange:
    now = given.limits.gpu_memory_utilization
    if now is None:
        name = given.runtime.advice.flags.limits[to.MEMORY]
        also = "" if name == "--gpu-memory-utilization" else f" ({name})"
        given.refuse(f"what is in force is not on the page; say it with --limit gpu-memory-utilization=0.9{also}")
    return to.memory_share(now.value, given.limit())


def _kv_dtype(given: _Given) -> to.ConfigChange:
    if not given.value.startswith(("fp8", "int8")):
        given.refuse(
            f"of KV cache types only fp8 and int8 can be simulated, such as {given.runtime.advice.flags.small_kv}"
        )
    known = given.model.known
    steps = known.server.steps
    bits = steps.table.kv_bits if isinstance(steps, CardSteps) and known.kv_bits is None else known.kv_bits
    if bits is not None and bits <= SMALL_KV_BITS:
        given.refuse("the KV cache is fp8 already")
    return to.kv_in_8_bits()


def _pool(given: _Given) -> to.ConfigChange:
    tokens, now = given.count(), given.model.known.server.pool_tokens
    declared = given.limits.kv_capacity_tokens
    return to.pool("kv_cache_tokens", tokens / (declared.value if declared else now), tokens)


def _tier(given: _Given) -> to.ConfigChange:
    each = given.model.known.bytes_per_token
    if each is None:
        given.refuse("how many bytes a token takes is not known, so neither is how many of them such a tier keeps")
    return to.context_tier(_of_sessions(given), each)


def _of_sessions(given: _Given) -> int:
    """Return the number. Raises click.UsageError where no sessions are simulated."""
    if given.model.known.demand.sessions is None:
        given.refuse("it changes what is kept for sessions that come back, and none are simulated here")
    return given.count()


def _replicas(given: _Given) -> to.ConfigChange:
    total = given.count()
    return to.replicas(total) if total <= 100 * to.MAX_REPLICAS else given.refuse("give at most 800")


def _gpu(given: _Given) -> to.ConfigChange:
    return given.onto(given.value) if given.onto else given.refuse("say with --gpu which card it runs on now")


_KINDS: Final[Mapping[str, tuple[str, Callable[[_Given], to.ConfigChange]]]] = {
    "max_num_seqs": ("", lambda given: to.sequences(int(given.limit()))),
    to.STEP: ("", lambda given: to.step_tokens(int(given.limit()))),
    "max_model_len": ("", lambda given: to.cap_total(int(given.limit()))),
    to.MEMORY: ("", _memory),
    KV_DTYPE: ("", _kv_dtype),
    "watermark": ("", lambda given: to.watermark(given.limit())),
    to.OFFLOAD: ("", _tier),
    "cap_prompt": ("max-input-tokens", lambda given: to.cap_prompt(given.count())),
    "cap_output": ("max-output-tokens", lambda given: to.cap_output(given.count())),
    "add_replica": ("replicas", _replicas),
    "kv_cache_tokens": ("kv-cache-tokens", _pool),
    to.SESSIONS: ("sessions", lambda given: to.sessions(_of_sessions(given))),
    to.STICKY: ("sticky-replicas", lambda given: to.sticky(_of_sessions(given))),
    to.GPU: ("gpu", _gpu),
}
"""Kinds of changes: the name of one that is no flag of a server, and how it is made."""


def _check_start(made: Sequence[to.ConfigChange], runtime: Runtime, model: Model) -> None:
    """Raise click.UsageError for values with which the server would not start."""
    keys = {change.key for change in made}
    server, _ = to.applied(model.state, made)
    if "max_model_len" in keys and runtime.planning.needs_longest and server.cap_total > server.pool_tokens:
        raise click.UsageError(
            f"{runtime.title} would not start: one request of {server.cap_total:,.0f} tokens "
            f"({runtime.advice.flags.limits['max_model_len']}) does not fit the pool of {server.pool_tokens:,.0f}"
        )
    known = math.isfinite(server.max_num_seqs) and runtime.audit.needs_step
    if known and keys & {"max_num_seqs", to.STEP} and server.max_num_seqs > server.step_tokens:
        step = f"{runtime.advice.flags.limits[to.STEP]} ({server.step_tokens:g})"
        most = f"{runtime.advice.flags.limits['max_num_seqs']} ({server.max_num_seqs:g})"
        raise click.UsageError(f"{runtime.title} would not start: {step} must be at or above {most}")
