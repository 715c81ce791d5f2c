"""Limits on one request: how long its prompt and its output may be."""

from __future__ import annotations

from kvpressure.audit import fixes
from kvpressure.audit.checks.context import Context, number, undeclared
from kvpressure.audit.engine import Engine
from kvpressure.audit.model import Verdict
from kvpressure.limits.declared import ANNOTATIONS


def input_tokens(engine: Engine, context: Context) -> Verdict:
    """The longest request bounds the prompt; a gateway's own limit is told by annotation."""
    limits = engine.reading.limits
    told = limits.get("max_input_tokens")
    if told is not None:
        place = engine.annotation_place(ANNOTATIONS["max_input_tokens"])
        return Verdict("pass", f"{number(told.value)} tokens, kept at the gateway", place)
    if (whole := limits.get("max_model_len")) is not None:
        place = engine.limit_place("max_model_len")
        return Verdict("pass", f"prompt and output together at most {number(whole.value)} tokens", place)
    fix = fixes.limit(engine, "max_model_len", f"{context.thresholds.advice_long_context_min_tokens:.0f}")
    return undeclared(engine, "max_model_len", "no limit: the model's whole context length", fix)


def output_tokens(engine: Engine, context: Context) -> Verdict:  # noqa: ARG001 - every check gets both
    """The server bounds every request's output, where it can; so may a gateway."""
    annotation = ANNOTATIONS["max_output_tokens"]
    told = engine.reading.limits.get("max_output_tokens")
    if told is not None:
        by_gateway = annotation in told.where
        place = engine.annotation_place(annotation) if by_gateway else engine.limit_place("max_output_tokens")
        how = "kept at the gateway" if by_gateway else "kept by the server"
        return Verdict("pass", f"{number(told.value)} tokens, {how}", place)
    reason = "no limit: an output may run to the end of the context"
    fix = fixes.annotation(annotation, "1024") + "  # once the gateway keeps it"
    if example := engine.runtime.audit.output_cap:
        why = "the longest output that clients need"
        fix += f"; or let {engine.runtime.title}:\n{fixes.limit(engine, 'max_output_tokens', example, why)}"
    return undeclared(engine, "max_output_tokens", reason, fix)
