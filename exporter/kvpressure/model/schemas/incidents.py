"""The schema of `incidents --json`."""

from __future__ import annotations

from typing import Final

from kvpressure.model.schemas.diagnosis import (
    CAUSE,
    DETAIL,
    DRAFT,
    LABELS,
    PARTS,
    STAGE,
    Schema,
    amount,
    array,
    boolean,
    count,
    keys,
    mapping,
    moment,
    number,
    or_null,
    ratio,
    ref,
    string,
)

VERSION: Final = "2.0"

_SERIES: Final = {"type": "array", "items": {"type": ["number", "null"]}}
_WHO: Final = {
    "target": string("What was scraped."),
    "model_name": string("The model it serves."),
    "engine": string("Data-parallel rank."),
}
_REPORTED: Final = {
    "cause": CAUSE,
    "detail": DETAIL,
    "began": moment("When it reported it first, to half a minute"),
    "ended": moment("When it reported it last"),
    "seconds": amount("How long it took."),
}
_FIRED: Final = keys(
    "An alert of kvpressure that fired, as `ALERTS` in the Prometheus has it.",
    alert=string("Its name."),
    severity=or_null(string("critical, warning or info; null where its label is not there.")),
    began=moment("Since when it fired, to half a minute"),
    ended=or_null(moment("Until when; null where it still fired at the end")),
    seconds=amount("For how long, up to the end of the time looked at."),
)
_PICTURE: Final = keys(
    "How it looked, from a quarter of an hour before it; coarser for a long incident.",
    t=array({"type": "number"}, "Times (unix seconds)."),
    running={**_SERIES, "description": "Requests in the batch."},
    waiting={**_SERIES, "description": "Requests that wait."},
    kv_usage_ratio={**_SERIES, "description": "Share of the KV cache in use."},
    tokens_per_second={**_SERIES, "description": "Generated tokens a second."},
    cause=array(CAUSE, "The verdict at each time."),
)
_INCIDENT: Final = keys(
    "A time of trouble of one engine.",
    target=_WHO["target"],
    labels=LABELS,
    namespace=string("Kubernetes namespace; empty without one."),
    pod=string("Pod; empty without one."),
    model_name=_WHO["model_name"],
    engine=_WHO["engine"],
    cause=CAUSE,
    detail=DETAIL,
    grounds=or_null(string("What shows the detail, or why nothing does.")),
    began=moment("When its queue began; where there was none, when the verdict first named it, a few samples late"),
    ended=or_null(moment("When its queue was served, or the verdict last named it; null where it went on at the end")),
    seconds=amount("How long it took."),
    judged_seconds=amount("Of it, what verdicts speak of; where that is too little, nothing lost is counted."),
    step_seconds=amount("Time between the samples it was judged by."),
    causes=mapping({"type": "number"}, "Seconds of each cause."),
    confidence=or_null(
        ratio("Share of the evidence that agrees with the cause, where the verdict was surest; null for none.")
    ),
    stage=STAGE,
    lost_tokens=or_null(amount("Tokens that were not generated; null where it is not known.")),
    healthy_seconds=amount("Healthy time that was seen before it, by which what was lost is counted."),
    lost_seconds=or_null(amount("What they take the engine healthy.")),
    recomputed_tokens=or_null(amount("Prompt tokens evicted and computed again; null without such a verdict.")),
    recomputed_seconds=or_null(amount("What computing them took of the engine's time.")),
    recomputed_gpu_seconds=or_null(amount("The same times the GPUs of an engine; null where they were not given.")),
    recomputed_money=or_null(amount("What these cost, in `currency`; null where no price was given.")),
    currency=or_null(string("Of `recomputed_money`; null without a price.")),
    tokens_per_second=or_null(number("Generated tokens a second during it.")),
    restarted=boolean("Whether another process answered after it began."),
    peak=mapping({"type": ["number", "null"]}, "Highest readings by name."),
    symptoms=mapping(ref("evidence"), "Every symptom by name, where the verdict was surest."),
    missing=array(ref("missing"), "What would have said more."),
    limits=ref("limits"),
    fired=or_null(
        array(
            ref("fired"),
            "Alerts on its engine or model during it, or within five minutes after it; null where that is not known.",
        )
    ),
    exporter=or_null(keys("What an exporter reported at the time, if its series are in the same place.", **_REPORTED)),
    actions=array(ref("action"), "What would have helped, in order."),
    picture=or_null(ref("picture")),
)

_BRIEF: Final = {
    **_WHO,
    "cause": CAUSE,
    "detail": DETAIL,
    "began": moment("When the verdict first named it"),
    "ended": or_null(moment("When it last did")),
    "seconds": amount("How long it took."),
    "lost_tokens": or_null(amount("Tokens that were not generated.")),
}
_WHICH: Final = keys(cause=CAUSE, detail=DETAIL)
_BACKTEST: Final = keys(
    "The same past by another setting of thresholds.",
    thresholds=string("Hash of the other thresholds."),
    changed_thresholds=mapping(keys(before=number("By the first setting."), after=number("By the other.")), "By name."),
    incidents=array(ref("incident"), "By the other setting."),
    same=count("Incidents that both find, with the same cause."),
    only_before=array(ref("brief"), "Those that only the first setting finds."),
    only_after=array(ref("brief"), "Those that only the other finds."),
    changed_cause=array(
        keys(**_BRIEF, before=_WHICH, after=_WHICH), "Those that both find, with another cause or detail."
    ),
)

SCHEMA: Final[Schema] = {
    "$schema": DRAFT,
    "$id": f"urn:kvpressure:schema:incidents:{VERSION}",
    "title": "What kvpressure incidents --json says",
    **keys(
        schema_version=string("Version of this schema: keys are only ever added within a major one."),
        kind=string("What this document is.", enum=["incidents"]),
        kvpressure=string("Version of the program."),
        prometheus=string("Its address."),
        selector=string("Label matchers that chose the engines; empty for all."),
        since=moment("Begin of the time looked at"),
        until=moment("Its end"),
        thresholds=string("Hash of the thresholds in force."),
        shortest_seconds=number("Incidents shorter than this are left out."),
        targets=count("Engines' pages that the Prometheus has scraped in that time."),
        targets_read=count("Those of which samples were read one by one."),
        seconds_read=number("Of all targets together, the time that was read so; the rest was screened."),
        samples_read=count("Verdicts that were made."),
        incidents=array(ref("incident"), "By their begin."),
        exporter_alone=array(
            keys(**_WHO, **_REPORTED),
            "Trouble that an exporter reported, and the engines' own series do not show at this pace.",
        ),
        backtest=or_null(_BACKTEST),
        has_rules=or_null(
            boolean("Whether the Prometheus has alerts of kvpressure in that time; null where they were not read.")
        ),
        unjudged=array(
            keys(**_WHO, detail=DETAIL, seconds=amount("For how long.")),
            "Engines at which requests waited while nothing showed why: the verdict was unknown.",
        ),
        unread=array(
            keys(target=_WHO["target"], why=string("Why nothing can be said of it.")),
            "What was there and could not be judged.",
        ),
        warnings=array({"type": "string"}, "The server's own, such as of answers that are not complete."),
    ),
    "$defs": {**PARTS, "fired": _FIRED, "picture": _PICTURE, "incident": _INCIDENT, "brief": keys(**_BRIEF)},
}
