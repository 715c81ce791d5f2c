"""Checks of limits: sequences and tokens of a step, and a request's prompt and output; long requests are apart."""

from __future__ import annotations

from typing import Final

from kvpressure.launch import ANNOTATIONS
from kvpressure.model.environment import DeclaredLimit
from kvpressure_planner.audit.checks.context import (
    TRAFFIC,
    Context,
    annotation_fix,
    is_long,
    limit_fix,
    longest_declared,
    longest_prompt,
    number,
    traffic,
    undecided,
    unsized,
)
from kvpressure_planner.audit.engine import Engine
from kvpressure_planner.audit.model import Verdict
from kvpressure_planner.audit.sizing import ASKED, OUTPUT, PROMPT, Sized, sequences_in_force, traffic_of
from kvpressure_planner.capacity.capacity_plan import Plan

_LIMIT: Final = "max_num_seqs"
_STEP: Final = "max_num_batched_tokens"
_NO_START: Final = "the server would not start (memory-target)"


def declared(engine: Engine, context: Context) -> Verdict:
    """Check: As many sequences as the KV cache holds.

    The server's own default depends on its version and on the GPU, and not on the KV cache: sequences above what
    fits are admitted and then preempted. Above max_num_batched_tokens it does not start, and at one or two there is
    no batch.
    """
    verdict = _fitting(engine, context)
    return verdict if verdict.status == "fail" else _implausible(engine, context) or verdict


def _fitting(engine: Engine, context: Context) -> Verdict:
    """Judge the number of sequences by the room in the KV cache."""
    if (verdict := undecided(engine, _LIMIT)) is not None:
        return verdict
    limit, sized = engine.reading.limits.get(_LIMIT), context.sized(engine)
    count = None if isinstance(sized, str) else sequences_in_force(engine, sized)
    default = f": {engine.runtime.audit.undeclared[_LIMIT]}" if count is None else f", so {number(count)}"
    shown = f"not declared{default}" if limit is None else number(limit.value)
    if limit is not None and _refused(engine):
        return Verdict("unknown", f"{shown}: the server would not start")
    if not isinstance(sized, str) and count is not None and not sized.refused:
        most = context.thresholds.advice.request_share_max_ratio
        return _beyond_states(engine, sized, (count, shown)) or _measured(engine, sized, (count, shown), most)
    if limit is not None and limit.value not in engine.runtime.audit.defaults[_LIMIT]:
        return Verdict("pass", f"{number(limit.value)} sequences")
    return _unmeasured(shown, sized, is_declared=limit is not None)


def _unmeasured(shown: str, sized: Sized | str, *, is_declared: bool) -> Verdict:
    """Return what is known of a default, written down or not, of an engine whose memory is not."""
    if isinstance(sized, str) and not is_declared:
        return unsized(sized)
    if not isinstance(sized, str) and sized.refused:
        return Verdict("fail", f"{shown}; {_NO_START}")
    why = sized if isinstance(sized, str) else "the default is not known"
    return Verdict("unknown", f"{shown}: whether they fit the KV cache is not known, {why}")


def _beyond_states(engine: Engine, sized: Sized, in_force: tuple[int, str]) -> Verdict | None:
    """Return why the server refuses so many sequences (`in_force`): each takes a block in layers with a state."""
    (count, shown), states = in_force, sized.pool().state_sequences
    if not states or count <= states:
        return None
    most = states if sized.plan is None else min(states, sized.plan.max_num_seqs)
    reason = f"{shown}: layers with a state (Mamba) have blocks for {number(states)}, and more are refused at start"
    return Verdict("fail", reason, limit_fix(engine, _LIMIT, str(most), sized.command) if most else "")


def _measured(engine: Engine, sized: Sized, in_force: tuple[int, str], share: float) -> Verdict:
    """Judge by memory alone, where no lengths are annotated: `share` of the longest is short for a request.

    `in_force` is the number of sequences, and how it is written.
    """
    count, shown = in_force
    if sized.plan is not None and sized.plan.max_num_seqs:
        return _planned(engine, sized, sized.plan, in_force)
    fits = sized.pool().fit(sized.longest, 1.0)
    if not fits:
        return Verdict("fail", f"{shown}; {_NO_START}")
    if count <= fits:
        return Verdict("pass", f"{shown}: {number(fits)} fit the KV cache at their longest")
    if engine.reading.limits.get(_LIMIT) is None or count in engine.runtime.audit.defaults[_LIMIT]:
        reason = f"{shown}: {number(fits)} fit at their longest; how long they are is not known ({PROMPT}, {OUTPUT})"
        return Verdict("unknown", reason)
    room = f"{number(fits)} fit the KV cache at their longest"
    most = sized.pool().fit(max(1, int(sized.longest * share)), 1.0)
    if count > most:
        reason = f"{shown}: only {room}, {number(most)} at {share:.0%} of it; are they shorter? ({PROMPT}, {OUTPUT})"
        return Verdict("fail", reason, limit_fix(engine, _LIMIT, str(most), sized.command))
    return Verdict("pass", f"{shown} sequences; {room}")


def _planned(engine: Engine, sized: Sized, plan: Plan, in_force: tuple[int, str]) -> Verdict:
    """Judge by the annotated lengths; `in_force` is the number of sequences, and how it is written."""
    (count, shown), fits = in_force, plan.max_num_seqs
    room = f"{number(fits)} of {number(plan.tokens_per_request)} tokens fit the KV cache"
    if count <= fits:
        return Verdict("pass", f"{shown}: {room}")
    if fits == engine.runtime.audit.largest_sequences:
        return Verdict("unknown", f"{shown}: {room}, and more are never planned")
    fix = limit_fix(engine, _LIMIT, str(fits), sized.command)
    return Verdict("fail", f"{shown}: only {room}, the others are preempted", fix)


def _implausible(engine: Engine, context: Context) -> Verdict | None:
    """Return what is wrong with a number whatever the memory: more than the server, a step or the given pool takes."""
    limits = engine.reading.limits
    limit = limits.get(_LIMIT)
    if limit is None:
        return None
    batched, pool = limits.get(_STEP), limits.get("kv_capacity_tokens")
    count = number(limit.value)
    title, largest = engine.runtime.title, engine.runtime.audit.largest_sequences
    if batched is not None and _refused(engine):
        reason = f"{count} is above max_num_batched_tokens ({number(batched.value)}): {title} refuses to start"
    elif largest is not None and limit.value > largest:
        reason = f"{count} is above {title}'s largest default ({number(largest)}): the KV cache is the limit then"
    elif limit.value <= context.thresholds.symptoms.batch_collapse_max_sequences:
        reason = f"{count} leaves nothing to batch"
    elif pool is not None and limit.value * (tokens := _least_tokens(engine, context)) > pool.value:
        fits = number(pool.value // tokens)
        reason = f"{count}: only {fits} of {number(tokens)} tokens fit a KV cache of {number(pool.value)}"
    else:
        return None
    return Verdict("fail", reason, _fix(engine, context))


def _least_tokens(engine: Engine, context: Context) -> int:
    """Return the tokens of a request as annotated, else the share of the longest that is short for one, at least 1."""
    longest, traffic = engine.reading.limits.get("max_model_len"), traffic_of(engine)
    if traffic is not None:
        return int(traffic.prompt_p95 + traffic.output_p95)
    return max(1, int(longest.value * context.thresholds.advice.request_share_max_ratio)) if longest else 1


def _refused(engine: Engine) -> bool:
    """Whether there are more sequences than tokens in a step, which the server refuses."""
    count, step = (engine.reading.limits.get(name) for name in (_LIMIT, _STEP))
    return engine.runtime.audit.needs_step and count is not None and step is not None and count.value > step.value


def _fix(engine: Engine, context: Context) -> str:
    """Return what a plan would set; "" where it cannot be computed."""
    sized, least = context.sized(engine), context.thresholds.symptoms.batch_collapse_max_sequences
    if isinstance(sized, str) or sized.plan is None or sized.plan.max_num_seqs <= least:
        return ""
    return limit_fix(engine, _LIMIT, str(sized.plan.max_num_seqs), sized.command)


def batched_tokens(engine: Engine, context: Context) -> Verdict:
    """Check: A step has no more tokens than the server itself would take.

    The memory of the largest step is set aside at start and comes out of the KV cache; a long step also holds up
    everybody's next token. The default depends on version and GPU (2048 to 16384).
    """
    if (verdict := undecided(engine, _STEP)) is not None:
        return verdict
    limit, most = engine.reading.limits.get(_STEP), engine.runtime.audit.defaults[_STEP][-1]
    if limit is None:
        return Verdict("pass", f"not declared: {engine.runtime.audit.undeclared[_STEP]}")
    shown = number(limit.value)
    if limit.value <= most:
        return Verdict("pass", f"{shown} tokens a step")
    sized = context.sized(engine)
    planned = most if isinstance(sized, str) or sized.plan is None else sized.plan.max_num_batched_tokens
    reason = (
        f"{shown} is above {number(most)}, the most that {engine.runtime.title} takes by itself: a step's memory comes "
        "out of the KV cache"
    )
    tokens = min(most, planned)
    sequences = engine.reading.limits.get(_LIMIT)
    # Fewer tokens in a step leave more to the pool: what starts now still does, but for more sequences than tokens.
    fits = sequences is None or sequences.value <= tokens
    fix = limit_fix(engine, _STEP, str(tokens), "the memory of the steps goes to the KV cache") if fits else ""
    return Verdict("fail", reason, fix)


_LONGEST = "max_model_len"
_LEAST_SHOWN = 0.005
"""Rounds to 1 %; less would be shown as 0 %."""


def input_tokens(engine: Engine, context: Context) -> Verdict:
    """Check: One request takes a small part of the KV cache.

    One prompt may take as much of the KV cache as the longest one allowed. Where nothing is declared that is the
    model's own context length, often far more than anybody sends.
    """
    # What is not declared is the model's own length, and judged as if it were written there.
    limit = engine.reading.limits.get("max_input_tokens")
    if limit is not None:
        return _enforced(engine, limit)
    if (verdict := undecided(engine, _LONGEST)) is not None:
        return verdict
    declared, sized = longest_declared(engine), context.sized(engine)
    if not isinstance(sized, str):
        return _measured_request(engine, sized, context)
    if declared is None:
        return unsized(sized)
    return Verdict("pass", f"prompt and output together at most {number(declared.value)} tokens")


def _measured_request(engine: Engine, sized: Sized, context: Context) -> Verdict:
    bound = context.thresholds.advice.request_share_max_ratio
    whose = ", the model's own length" if sized.longest == sized.geometry.max_model_len else ""
    pool, said = sized.pool(), f"{number(sized.longest)} tokens{whose}"
    if not pool.size_bytes or sized.refused:
        return Verdict("fail", f"{said}; {_NO_START}")
    fits = pool.fit(sized.longest, 1.0)
    longest = sized.plan.max_model_len if sized.plan is not None else pool.longest(bound, sized.longest)
    shorter = limit_fix(engine, _LONGEST, str(longest), sized.command) if longest > 1 else ""
    if fits < 1:
        return Verdict("fail", f"{said}: one such request does not fit the KV cache", shorter)
    share = pool.cost.request_bytes(sized.longest) / pool.size_bytes
    if share <= bound or (sized.plan is not None and sized.longest <= sized.plan.max_model_len):
        shown = f"{share:.0%}" if share >= _LEAST_SHOWN else "less than 1%"
        return Verdict("pass", f"{said}: at most {shown} of the KV cache each")
    count = sequences_in_force(engine, sized)
    if count is not None and fits >= count:
        return Verdict("pass", f"{said}: all {number(count)} sequences fit the KV cache at their longest")
    reason = f"{said}: one request may take {share:.0%} of the KV cache, above {bound:.0%}"
    return Verdict("fail", reason, shorter)


def output_tokens(engine: Engine, context: Context) -> Verdict:  # noqa: ARG001 - every check gets both
    """Check: The longest output is declared.

    A request keeps its KV cache until its last token. Without a limit one request may run to the end of the
    context.
    """
    # The server bounds every request's output, where it can; so may a gateway.
    annotation = ANNOTATIONS["max_output_tokens"]
    limit = engine.reading.limits.get("max_output_tokens")
    if limit is not None:
        return _enforced(engine, limit)
    if engine.runtime.audit.pooling(engine.reading.options):
        return Verdict("pass", "a pooling model generates nothing")
    if (verdict := undecided(engine, "max_output_tokens")) is not None:
        return verdict
    return Verdict("fail", "no limit: an output may run to the end of the context", _cap(engine, annotation))


def _enforced(engine: Engine, limit: DeclaredLimit) -> Verdict:
    """Return who keeps to a limit on prompts or outputs: the gateway where an annotation has it, else the server."""
    by_gateway = ANNOTATIONS[limit.name] in limit.where
    place = engine.annotation_place(ANNOTATIONS[limit.name]) if by_gateway else engine.limit_place(limit.name)
    who = "gateway" if by_gateway else "server"
    return Verdict("pass", f"{number(limit.value)} tokens, enforced by the {who}", place=place)


def _cap(engine: Engine, annotation: str) -> str:
    """Return the p95 of outputs as annotated, as a fix; "" where their length is not annotated."""
    lengths, example = traffic_of(engine), engine.runtime.audit.output_cap
    if lengths is None:
        return ""
    fix = annotation_fix(annotation, f"{lengths.output_p95:.0f}") + "  # once the gateway enforces it"
    if example:
        value, why = example % int(lengths.output_p95), "the p95 of outputs, as annotated"
        fix += f"; or let {engine.runtime.title}:\n{limit_fix(engine, 'max_output_tokens', value, why)}"
    return fix


def separate(engine: Engine, context: Context) -> Verdict:
    """Check: Long and short requests have deployments of their own.

    A long prompt takes the KV cache of many short ones, and where prompts are admitted whole it blocks every
    request behind it.
    """
    if traffic(engine) & {"long", "short"}:
        place = engine.annotation_place(TRAFFIC)
        return Verdict("pass", f"declared for {engine.annotations[TRAFFIC]} requests", place=place)
    limit, long = longest_prompt(engine, context), is_long(engine, context)
    if limit is None or long is None:
        if (verdict := undecided(engine, _LONGEST)) is not None:
            return verdict
        sized = context.sized(engine)
        return unsized(
            sized if isinstance(sized, str) and sized.endswith(ASKED[0]) else "the longest prompt is not known"
        )
    if not long:
        return Verdict("pass", f"only requests up to {number(limit.value)} tokens")
    if (sibling := _sibling(engine, context)) is not None:
        return Verdict("pass", f"{sibling.title} serves the short requests of the same model")
    reason = f"prompts up to {number(limit.value)} tokens share one deployment with short ones"
    fix = annotation_fix(TRAFFIC, "long") + "  # once short requests go elsewhere"
    return Verdict("fail", reason, fix)


def _sibling(engine: Engine, context: Context) -> Engine | None:
    """Return an engine of the same model that only takes short prompts."""
    if not engine.model:
        return None
    others = (other for other in context.engines if other is not engine and other.model == engine.model)
    return next((other for other in others if is_long(other, context) is False), None)


_SHOWN = 3


def options_known(engine: Engine, context: Context) -> Verdict:  # noqa: ARG001 - every check gets both
    """Check: The server's version has the options.

    One that it does not have ends the server before it starts, and a newer image may have fewer.
    """
    audit, used = engine.runtime.audit, {**engine.reading.options, **engine.reading.unclear}
    gone = {name: versions for name, versions in audit.removed.items() if name in used}
    if not gone:
        hidden = engine.reading.hidden
        none = "none that a version is known to lack"
        return Verdict("unknown", f"{none}, but {hidden[0]}", once="engine") if hidden else Verdict("pass", none)
    version, title = audit.version(engine.image), engine.runtime.title
    lacking = [name for name, (_, without) in gone.items() if version is not None and version >= without]
    name = next(iter(lacking or gone))
    since = ".".join(map(str, gone[name][1]))
    place, others = engine.option_place(name), len(lacking or gone) - 1
    more = f" (and {others} more)" if others else ""
    if lacking:
        reason = f"--{name}{more} is no option of {title} {since} and later, and the image is {engine.image}"
        return Verdict("fail", f"{reason}: the server does not start", place=place)
    if version is not None and all(last is None or version <= last for last, _ in gone.values()):
        return Verdict("pass", f"--{name}{more} is there until {title} {since} at the latest")
    unclear = f"the version in {engine.image} is not known" if engine.image else "which version this is, is not known"
    return Verdict("unknown", f"--{name}{more} is no option of {title} {since} and later; {unclear}", place=place)
