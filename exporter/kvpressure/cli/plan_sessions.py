"""`plan --sessions`: its options, and what it says of sessions that come back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeVar

import click

from kvpressure.capacity.arithmetic import number, size
from kvpressure.capacity.capacity_plan import Plan
from kvpressure.capacity.session_plan import TURNS, SessionPlan, SessionsAsked, plan_sessions

F = TypeVar("F", bound=Callable[..., Any])

ANSWER_TOKENS: Final = 300.0
"""Of an answer, unless --output-p95 says another."""
_UNITS: Final = {"ms": 0.001, "min": 60.0, "m": 60.0, "h": 3600.0, "s": 1.0}


def seconds(text: str) -> float:
    """Return the seconds of a time such as 20, 20s, 1.5m or 1h. Raises click.BadParameter."""
    given = text.strip().lower()
    unit = next((unit for unit in _UNITS if given.endswith(unit)), "")
    try:
        found = float(given.removesuffix(unit)) * _UNITS.get(unit, 1.0)
    except ValueError:
        found = -1.0
    if not 0.01 <= found <= 86_400:
        raise click.BadParameter(f"{text!r} is not a time such as 20s or 2m, of a day at most")
    return found


_OPTIONS: Final = (
    click.option("--sessions", type=click.IntRange(1, 100_000), help="Chats or agents at a time that come back."),
    click.option("--context", type=click.FloatRange(16, 10_000_000), help="Tokens of a session's context on average."),
    click.option("--think", type=seconds, metavar="TIME", help="From an answer to the session's next turn, as 20s."),
    click.option(
        "--turns", type=click.IntRange(2, 10_000), default=TURNS, show_default=True, help="Turns of a session."
    ),
)


def session_options(function: F) -> F:
    """Sessions that are described."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def asked_of(options: Mapping[str, Any]) -> SessionsAsked | None:
    """Return the sessions described, None without any. Raises click.UsageError where a part is missing."""
    given = {name: options[name] for name in ("sessions", "context", "think")}
    if all(value is None for value in given.values()):
        return None
    lacking = [f"--{name}" for name, value in given.items() if value is None]
    if lacking:
        raise click.UsageError(f"sessions are described by --sessions, --context and --think; missing: {lacking[0]}")
    answer = options["output_p95"] or ANSWER_TOKENS
    return SessionsAsked(given["sessions"], given["context"], given["think"], answer, options["turns"])


def with_lengths(options: Mapping[str, Any], asked: SessionsAsked) -> dict[str, Any]:
    """Return the options with the longest context and the answer as lengths, where none are given or seen."""
    if options["url"] is not None:
        return dict(options)
    lengths = {"prompt_p95": asked.longest_tokens, "output_p95": asked.answer_tokens}
    return {**options, **{name: options[name] or value for name, value in lengths.items()}}


def planned(asked: SessionsAsked, plan: Plan) -> SessionPlan | None:
    """Return the plan for the sessions on the pool of a plan."""
    each = plan.pool_bytes / plan.pool_tokens if plan.pool_bytes is not None and plan.pool_tokens else None
    return plan_sessions(asked, plan.pool_tokens, each)


def session_report(asked: SessionsAsked, plan: SessionPlan | None) -> Iterator[str]:
    """Return the lines about sessions."""
    yield ""
    yield "Sessions"
    if plan is None:
        yield f"  the pool does not hold one context of {number(round(asked.longest_tokens))} tokens to its end"
        return
    bytes_ = "" if plan.working_set_bytes is None else f", {size(plan.working_set_bytes)} on each GPU"
    yield (
        f"  working set: {number(plan.working_set_tokens)} tokens{bytes_}, of {number(asked.count)} sessions whose "
        f"contexts grow to {number(round(asked.longest_tokens))}"
    )
    yield (
        f"  this pool: {number(plan.pool_tokens)} tokens find {plan.hit_ratio:.0%} of the prompts' tokens, "
        f"{plan.best_hit_ratio:.0%} if nothing were evicted"
    )
    yield f"  cliff: below {_rounded(plan.cliff_tokens)} tokens less than half of that is found"
    yield ""
    yield "The least that finds nine tenths of it, each by itself"
    yield f"  a pool of {_rounded(plan.pool_tokens_needed)} tokens"
    yield f"  (the KV cache in 8 bits, if it is in 16 now: finds {plan.hit_ratio_in_8_bits:.0%})"
    if plan.replicas is not None:
        yield f"  replicas: {number(plan.replicas)}, each session always to the same one"
    if plan.sessions_per_replica is not None:
        yield f"  sessions on one replica: at most {number(plan.sessions_per_replica)}"
    tier = f"{_rounded(plan.offload_tokens)} tokens" if plan.offload_bytes is None else size(plan.offload_bytes)
    of = "" if plan.offload_bytes is None else " for each GPU"
    yield f"  a tier for evicted contexts in host memory: {tier}{of}"
    yield ""
    yield "  Simulated with steps of 30 ms, 16,000 prompt tokens a second, and think times up to five times the"
    yield "  shortest; `kvpressure whatif` starts from a running engine instead."


def _rounded(tokens: float) -> str:
    """Two digits: more would be made up."""
    return number(float(f"{tokens:.2g}"))
