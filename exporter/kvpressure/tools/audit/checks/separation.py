"""Long and short requests in deployments of their own."""

from __future__ import annotations

from kvpressure.tools.audit import fixes
from kvpressure.tools.audit.checks.context import TRAFFIC, Context, is_long, longest_prompt, number, traffic
from kvpressure.tools.audit.engine import Engine
from kvpressure.tools.audit.model import Verdict


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
    fix = fixes.annotation(TRAFFIC, "long") + "  # once short requests go to a deployment of their own"
    return Verdict("fail", reason, place, fix)


def _sibling(engine: Engine, context: Context) -> Engine | None:
    """Return an engine of the same model that only takes short prompts."""
    if not engine.model:
        return None
    others = (other for other in context.engines if other is not engine and other.model == engine.model)
    return next((other for other in others if is_long(other, context) is False), None)
