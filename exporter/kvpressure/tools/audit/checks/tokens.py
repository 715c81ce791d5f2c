"""Limits on one request: how long its prompt and its output may be, and long ones in deployments of their own."""

from __future__ import annotations

from kvpressure.launch import ANNOTATIONS
from kvpressure.tools.audit.checks.context import (
    TRAFFIC,
    Context,
    annotation_fix,
    is_long,
    limit_fix,
    longest_prompt,
    number,
    traffic,
    unseen,
)
from kvpressure.tools.audit.engine import Engine
from kvpressure.tools.audit.model import Verdict
from kvpressure.tools.audit.sizing import Sized, sequences_in_force, traffic_of

_LIMIT = "max_model_len"
_LEAST_SHOWN = 0.005
"""What is shown as 1 %; less would be shown as none."""


def input_tokens(engine: Engine, context: Context) -> Verdict:
    """Check that the longest request bounds the prompt; a gateway's own limit is told by annotation.

    What is not declared is the model's own length, and judged as if it were written there.
    """
    told = engine.reading.limits.get("max_input_tokens")
    if told is not None:
        place = engine.annotation_place(ANNOTATIONS["max_input_tokens"])
        return Verdict("pass", f"{number(told.value)} tokens, kept at the gateway", place)
    if (verdict := unseen(engine, _LIMIT)) is not None:
        return verdict
    place, declared, sized = engine.limit_place(_LIMIT), engine.reading.limits.get(_LIMIT), context.sized(engine)
    if not isinstance(sized, str):
        return _measured(engine, sized, context)
    if declared is None:
        return Verdict("unknown", f"not declared, so the model's whole context length; {sized}", place)
    return Verdict("pass", f"prompt and output together at most {number(declared.value)} tokens", place)


def _measured(engine: Engine, sized: Sized, context: Context) -> Verdict:
    place, bound = engine.limit_place(_LIMIT), context.thresholds.advice_request_share_max_ratio
    whose = ", the model's own length" if sized.longest == sized.geometry.max_model_len else ""
    pool, said = sized.pool(), f"{number(sized.longest)} tokens{whose}"
    if not pool.size_bytes or sized.refused:
        return Verdict("unknown", f"{said}; the server would not start (memory-target)", place)
    fits = pool.fit(sized.longest, 1.0)
    longest = sized.plan.max_model_len if sized.plan is not None else pool.longest(bound, sized.longest)
    shorter = limit_fix(engine, _LIMIT, str(longest), sized.command) if longest > 1 else ""
    if fits < 1:
        return Verdict("fail", f"{said}: one such request does not fit the KV cache", place, shorter)
    share = pool.cost.request_bytes(sized.longest) / pool.size_bytes
    if share <= bound or (sized.plan is not None and sized.longest <= sized.plan.max_model_len):
        shown = f"{share:.0%}" if share >= _LEAST_SHOWN else "less than 1%"
        return Verdict("pass", f"{said}: at most {shown} of the KV cache each", place)
    count = sequences_in_force(engine, sized)
    if count is not None and fits >= count:
        return Verdict("pass", f"{said}: all {number(count)} sequences fit the KV cache at their longest", place)
    reason = f"{said}: one request may take {share:.0%} of the KV cache, above {bound:.0%}"
    return Verdict("fail", reason, place, shorter)


def output_tokens(engine: Engine, context: Context) -> Verdict:  # noqa: ARG001 - every check gets both
    """Check that the server bounds every request's output, where it can; so may a gateway."""
    annotation = ANNOTATIONS["max_output_tokens"]
    told = engine.reading.limits.get("max_output_tokens")
    if told is not None:
        by_gateway = annotation in told.where
        place = engine.annotation_place(annotation) if by_gateway else engine.limit_place("max_output_tokens")
        how = "kept at the gateway" if by_gateway else "kept by the server"
        return Verdict("pass", f"{number(told.value)} tokens, {how}", place)
    if (verdict := unseen(engine, "max_output_tokens")) is not None:
        return verdict
    reason = "no limit: an output may run to the end of the context"
    return Verdict("fail", reason, engine.limit_place("max_output_tokens"), _cap(engine, annotation))


def _cap(engine: Engine, annotation: str) -> str:
    """Return the p95 of outputs as annotated; "" where nobody said how long they are."""
    lengths, example = traffic_of(engine), engine.runtime.audit.output_cap
    if lengths is None:
        return ""
    fix = annotation_fix(annotation, f"{lengths.output_p95:.0f}") + "  # once the gateway keeps it"
    if example:
        value, why = example % int(lengths.output_p95), "the p95 of outputs, as annotated"
        fix += f"; or let {engine.runtime.title}:\n{limit_fix(engine, 'max_output_tokens', value, why)}"
    return fix


def separate(engine: Engine, context: Context) -> Verdict:
    """Check that an engine that takes long prompts says that it is for those, or has a sibling for the short ones."""
    if traffic(engine) & {"long", "short"}:
        return Verdict("pass", f"declared for {engine.annotations[TRAFFIC]} requests", engine.annotation_place(TRAFFIC))
    limit, place = longest_prompt(engine, context), engine.limit_place("max_model_len")
    long = is_long(engine, context)
    if limit is None or long is None:
        return Verdict("unknown", "the longest prompt is not known", place)
    if not long:
        return Verdict("pass", f"only requests up to {number(limit.value)} tokens", place)
    if (sibling := _sibling(engine, context)) is not None:
        return Verdict("pass", f"{sibling.title} serves the short requests of the same model", place)
    reason = f"prompts up to {number(limit.value)} tokens share one deployment with short ones"
    fix = annotation_fix(TRAFFIC, "long") + "  # once short requests go to a deployment of their own"
    return Verdict("fail", reason, place, fix)


def _sibling(engine: Engine, context: Context) -> Engine | None:
    """Return an engine of the same model that only takes short prompts."""
    if not engine.model:
        return None
    others = (other for other in context.engines if other is not engine and other.model == engine.model)
    return next((other for other in others if is_long(other, context) is False), None)
