"""Templates to text: delimiters that leave Prometheus' own `{{ }}` alone, and the words that templates share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import jinja2

from kvpressure.config.strict_yaml import ConfigError, Problem
from kvpressure.model.action import FIRST_STEPS
from kvpressure.model.verdict import DETAILS
from kvpressure.runtimes.registry import ASSUMED
from kvpressure.tools.bundle.options import Options

_RANK: Final = "{{ if ne $labels.engine `0` }} (rank {{ $labels.engine }}){{ end }}"
_MODEL: Final = "{{ reReplaceAll `.*/(.)` `$1` $labels.model_name }}"
"""Without its organization: a locked phone shows some two hundred characters."""

_ENGINE: Final = _MODEL + " on {{ or $labels.pod $labels.target }}" + _RANK
_THING: Final = (
    "{{ with $labels.pod }}{{ $labels.namespace }}/{{ . }}{{ else }}"
    "{{ $labels.container }} at {{ $labels.instance }}{{ end }}"
)
_LOOPBACK: Final = r"^(https?://)?(localhost|127\.|\[::1\])"
_ON_ITS_HOST: Final = (
    f"{{{{ if not (match `{_LOOPBACK}` %(instance)s) }}}}ssh {{{{ %(instance)s | stripPort }}}} {{{{ end }}}}"
)
"""Prefix of a command that must run on the exporter's host; nothing where that is Prometheus' own."""

_REACHABLE: Final = r"^(https?://[\w.:\[\]-]+|[\w.:\[\]-]+:[0-9]+)(/[\w.~/-]*)?$"
"""Addresses that `triage` can poll, and a shell takes as one word."""

_TRIAGE: Final = (
    "{{ $at := %(target)s }}{{ with query (printf `kvpressure_target_info{%(selector)scluster=%%q,instance=%%q,"
    "target=%%q}` %(cluster)s %(instance)s %(target)s) }}{{ $at = . | first | label `address` }}{{ end }}"
    "{{ if and %(pod)s (eq $at %(target)s) }}kubectl kvpressure triage -n {{ %(namespace)s }} pod/{{ %(pod)s }}"
    f"{{{{ else if match `{_REACHABLE}` $at }}}}"
    f"{{{{ if match `{_LOOPBACK}` $at }}}}{_ON_ITS_HOST}{{{{ end }}}}kvpressure triage {{{{ $at }}}}"
    "{{ else }}curl -s {{ %(instance)s | printf `http://%%s/targets` }}{{ end }}"
)
"""The command for one engine: by its pod, or its address; one without either is in the exporter's list of targets."""

_WORST: Final = (
    "{{ with query (printf `(%s) == on () group_left () max(%s)`%s) }}{{ $worst := sortByLabel `target` . | first }}%s"
    "{{ else }}{{ if $labels.namespace }}kubectl -n {{ $labels.namespace }} get pods"
    "{{ else }}systemctl status 'vllm*' 'kvpressure*'{{ end }}{{ end }}"
)
_STATUS: Final = "{{ with query (%s) }}: {{ . | first | label `text` }}{{ end }}"
_COUNT: Final = "namespace_model:kvpressure_replicas:count{cluster=%q,namespace=%q,model_name=%q}"
_MODEL_VALUES: Final = "$labels.cluster $labels.namespace $labels.model_name"
_REPLICAS: Final = (
    f"{{{{ with query (printf `{_COUNT}` {_MODEL_VALUES}) }}}}{{{{ $all := . | first | value }}}}"
    f"{{{{ with query (printf `round(%f * {_COUNT})` $value {_MODEL_VALUES}) }}}}{{{{ . | first | value }}}}"
    " of {{ $all }} replicas{{ end }}{{ end }}"
)
"""How many of a model's replicas the alert's value, a ratio, stands for."""

_SAME_ENGINE: Final = ("cluster", "instance", "target", "model_name", "engine")
_SAME_TARGET: Final = ("cluster", "instance", "target")
_SAME_MODEL: Final = ("cluster", "namespace", "model_name")
_VLLM_ENGINE: Final = (
    "{{ $labels.model_name }} on {{ if $labels.pod }}{{ with $labels.namespace }}{{ . }}/{{ end }}{{ $labels.pod }}"
    "{{ else }}{{ $labels.instance }}{{ end }}"
    "{{ if and $labels.engine (ne $labels.engine `0`) }} (rank {{ $labels.engine }}){{ end }}"
)
_VLLM_TRIAGE: Final = (
    "{{ if and $labels.pod $labels.namespace }}kubectl kvpressure triage -n {{ $labels.namespace }} "
    "pod/{{ $labels.pod }}{{ else }}kvpressure triage {{ $labels.instance }}{{ end }}"
)
_SAME_VLLM: Final = ("cluster", "job", "namespace", "pod", "instance", "model_name", "engine")
"""The labels that identify an engine in vLLM's series; a missing label equals an empty one."""

STEP_SERIES: Final = "kvpressure_recommended_action"

_VLLM_SINCE: Final = "{{ with query (%s) }}Since {{ (. | first | value | toTime).UTC.Format `15:04` }} UTC: {{ end }}"


def render(path: str, text: str, options: Options, more: Mapping[str, Any] | None = None) -> str:
    """Render one template; `path` is its name in messages. Raises ConfigError when it uses what does not exist."""
    now = Now(options.selector)
    context: dict[str, Any] = {
        "limits": options.thresholds.values,
        "thresholds_hash": options.thresholds.hash,
        "selector": options.selector,
        "engine": _ENGINE,
        "model": _MODEL + "{{ with $labels.namespace }} in {{ . }}{{ end }}",
        "thing": _THING,
        "on_its_host": _ON_ITS_HOST % {"instance": "$labels.instance"},
        "replicas": _REPLICAS,
        "triage": _triage(options.selector, "$labels"),
        "impact": partial(_impact, options.selector, _SAME_ENGINE),
        "impact_of_all": partial(_impact, options.selector, _SAME_MODEL),
        "worst": partial(_worst, options.selector),
        "now": now,
        "lately": Now(options.selector, look_back="10m"),
        "which": partial(_which, now),
        "first": partial(_first, options.selector, _SAME_ENGINE),
        "first_of_worst": partial(_first, options.selector, _SAME_MODEL, "kvpressure_score"),
        "vllm": partial(_series, options.selector),
        "vllm_engine": _VLLM_ENGINE,
        "vllm_triage": _VLLM_TRIAGE,
        "vllm_with": _vllm_with,
        "vllm_since": _vllm_since,
        "also": f",{options.selector}" if options.selector else "",
        "details": {cause.value: dict(meanings) for cause, meanings in DETAILS.items()},
        "remedies": {detail: remedy.title for detail, remedy in ASSUMED.advice.remedies.items()},
        "plain": plain,
        "target": "{{ or $labels.pod $labels.target }}",
        "status": _STATUS % Now(options.selector, labels=_SAME_TARGET).query("kvpressure_target_status"),
        **(more or {}),
    }
    try:
        return _ENVIRONMENT.from_string(text).render(context)
    except jinja2.TemplateSyntaxError as error:
        raise ConfigError([Problem(path, error.lineno, "", f"is no template: {error.message}")]) from None
    except jinja2.UndefinedError as error:
        raise ConfigError([Problem(path, None, "", f"uses what does not exist: {error.message}")]) from None


def _triage(selector: str, labels: str) -> str:
    """Return the command for the engine whose labels are fields of `labels`."""
    names = ("cluster", "instance", "namespace", "pod", "target")
    fields = {name: f"{labels}.{name}" for name in names}
    return _TRIAGE % {**fields, "selector": f"{selector}," if selector else ""}


def _worst(selector: str, *series: str) -> str:
    """Return the command for the alert's replica with the highest value of any of `series`; ties go by name.

    With `topk` any of them would do, another at each evaluation, and the text would never be the same.
    """
    either = " or ".join(_selected(one, selector, _SAME_MODEL) for one in series)
    labels = 2 * "".join(f" $labels.{name}" for name in _SAME_MODEL) * len(series)
    return _WORST % (either, either, labels, _triage(selector, "$worst.Labels"))


def _impact(selector: str, same: Sequence[str], cause: str = "", look_back: str = "10m") -> str:
    """Return sentences on the impact: since when, how many requests wait and how long, the tokens lost.

    They are about the alert's engine, or with the labels of a model about all its engines. `cause` is the cause whose
    begin counts, "" for none. A value that is unknown or zero has no sentence.
    """
    values = "".join(f" $labels.{name}" for name in same)

    def query(expr: str, series: str, window: str = "") -> str:
        return f"with query (printf `{expr % (_selected(series, selector, same) + window)}`{values})"

    first, last = ". | first | value", f"[{look_back}]"
    drain = query("max(last_over_time(%s)) > 0", "kvpressure_queue_drain_seconds", last)
    waiting = query("sum(last_over_time(%s)) > 0", "kvpressure_requests_waiting", last)
    lost = query("sum(increase(%s)) >= 1", "kvpressure_lost_tokens_total", "[10m]")
    calm = "time() - max_over_time(timestamp(max(%s) == 0)[1h:15s]) > 0"
    began = query(calm, f'kvpressure_bottleneck{{cause="{cause}"}}') if cause else ""
    whole = f"{first} | printf `%.0f`"
    since = f"{{{{ {began} }}}}Began {{{{ {whole} | humanizeDuration }}}} ago. {{{{ end }}}}" if cause else ""
    return (
        f"{since}{{{{ {waiting} }}}}Waiting {{{{ {whole} }}}}"
        f" (1m mean){{{{ {drain} }}}}, {{{{ {whole} | humanizeDuration }}}} to drain{{{{ end }}}}. {{{{ end }}}}"
        f"{{{{ {lost} }}}}{{{{ {first} | humanize }}}} tokens lost in 10m. {{{{ end }}}}"
    )


def _selected(series: str, selector: str, labels: Sequence[str]) -> str:
    """Return a series' selector for the alert's own `labels`; `series` may end in matchers."""
    name, _, matchers = series.partition("{")
    inside = [*filter(None, [selector, matchers.removesuffix("}")]), *(f"{label}=%q" for label in labels)]
    return f"{name}{{{','.join(inside)}}}"


def _series(selector: str, name: str, *matchers: str) -> str:
    """Return a selector of the bundle's series, without braces where nothing is matched."""
    inside = ",".join(filter(None, [*matchers, selector]))
    return f"{name}{{{inside}}}" if inside else name


def _vllm_with(text: str, series: str, how: str = "printf `%.0f`") -> str:
    """Return a text with the value of a series for the alert's engine in place of `{}`; nothing without a value."""
    before, after = text.split("{}")
    found = Now("", labels=_SAME_VLLM).query(series)
    return f"{{{{ with query ({found}) }}}}{before}{{{{ . | first | value | {how} }}}}{after}{{{{ end }}}}"


def _vllm_since(alert: str) -> str:
    """Return since when the alert's expression has been true for this engine, or now, as the start of a sentence."""
    query = Now("", labels=_SAME_VLLM).query(f'ALERTS_FOR_STATE{{alertname="{alert}"}}')
    return _VLLM_SINCE % query.replace("}`", "} or on () vector(time())`", 1)


class Now:
    """`now(series, how, text)`: the value of another series for the alert's engine, in place of `{}` in a text.

    `series` may end in matchers (`name{kind="e2e"}`), `how` is a template function such as humanize. Where the series
    is absent, for as long as `look_back`, there is no text, and a value without a text is "unknown". `labels` have to
    be the alert's.
    """

    def __init__(self, selector: str, look_back: str = "", labels: Sequence[str] = _SAME_ENGINE) -> None:
        self._selector, self._labels, self._look_back = selector, labels, look_back

    def __call__(self, series: str, how: str = "humanize", text: str = "") -> str:
        """Return the template text."""
        before, _, after = text.partition("{}")
        otherwise = "" if text else "{{ else }}unknown"
        found = f"{before}{{{{ . | first | value | {how} }}}}{after}"
        return f"{{{{ with query ({self.query(series)}) }}}}{found}{otherwise}{{{{ end }}}}"

    def query(self, series: str) -> str:
        """Return the template expression that gives the query."""
        selected = _selected(series, self._selector, self._labels)
        values = " ".join(f"$labels.{label}" for label in self._labels)
        if self._look_back:
            selected = f"last_over_time({selected}[{self._look_back}])"
        return f"printf `{selected}` {values}"


def _which(now: Now, cause: str, texts: Mapping[str, str], otherwise: str = "") -> str:
    """Return the text of the most frequent detail of the engine's cause in ten minutes, `otherwise` without one."""
    info = now.query(f'kvpressure_bottleneck_info{{cause="{cause}"}}')
    most = info.replace("printf `", "printf `topk(1, count_over_time(", 1).replace("}`", "}[10m]))`", 1)
    return _by_label(most, "first", "detail", texts, otherwise)


def _first(selector: str, same: Sequence[str], *given: str) -> str:
    """Return the first step for the alert's engine, as on its page; the last of `given` where there is none.

    With a series before that, the step of the engine of the alert's model that has the highest value; ties go by name.
    """
    *by, otherwise = given
    step, labels = _selected(STEP_SERIES, selector, same), "".join(f" $labels.{name}" for name in same)
    for series in by:
        score = f"{step} * on ({', '.join(_SAME_ENGINE)}) group_left () {_selected(series, selector, same)}"
        step, labels = f"({score}) == on () group_left () max({score})", 4 * labels
    return _by_label(f"printf `{step}`{labels}", "sortByLabel `target` | first", "action", _STEPS, otherwise)


_LONGEST_STEP: Final = 45
_STEPS: Final = {
    **FIRST_STEPS,
    **{key: one.title for key, one in ASSUMED.advice.remedies.items() if len(one.title) <= _LONGEST_STEP},
}


def _by_label(query: str, one: str, label: str, texts: Mapping[str, str], otherwise: str) -> str:
    """Return the text for the value of a label of the first series that a query gives."""
    choices = "{{ else ".join(f"if eq $kind `{value}` }}}}{text}" for value, text in texts.items())
    known = f"{{{{ $kind := . | {one} | label `{label}` }}}}{{{{ {choices}{{{{ else }}}}{otherwise}{{{{ end }}}}"
    return f"{{{{ with query ({query}) }}}}{known}{{{{ else }}}}{otherwise}{{{{ end }}}}"


def plain(value: Any) -> Any:
    """Return a number without needless digits or exponent: 0.9, 300, never 300.0 or 3e+02."""
    if not isinstance(value, float):
        return value
    return str(int(value)) if value.is_integer() else repr(value)


def percent(ratio: float) -> str:
    """Return a ratio in percent: 0.85 is 85 %."""
    return f"{ratio * 100:.3g} %"


_ENVIRONMENT: Final = jinja2.Environment(
    block_start_string="[%",
    block_end_string="%]",
    variable_start_string="[[",
    variable_end_string="]]",
    comment_start_string="[#",
    comment_end_string="#]",
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
    finalize=plain,
    autoescape=False,  # noqa: S701 - the output is YAML, read back and checked, never HTML
)
_ENVIRONMENT.filters["percent"] = percent
