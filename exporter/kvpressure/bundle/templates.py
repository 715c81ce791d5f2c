"""Templates to text: delimiters that leave Prometheus' own `{{ }}` alone, and the words that templates share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any, Final

import jinja2

from kvpressure.bundle.options import Options
from kvpressure.config.strict_yaml import ConfigError, Problem

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

_SAME_ENGINE: Final = ("cluster", "instance", "target", "engine")
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
_SAME_WORKLOAD: Final = ("cluster", "namespace", "workload")
_SAME_VLLM: Final = ("cluster", "instance", "model_name", "engine")
"""The labels that identify an engine in vLLM's series; a missing label equals an empty one."""

_TRIAGE_POD: Final = "kubectl kvpressure triage -n {{ $labels.namespace }} pod/{{ $labels.pod }}"


def render(path: str, text: str, options: Options, more: Mapping[str, Any] | None = None) -> str:
    """Render one template; `path` is its name in messages. Raises ConfigError when it uses what does not exist."""
    context: dict[str, Any] = {
        "limits": options.thresholds.values,
        "thresholds_hash": options.thresholds.hash,
        "selector": options.selector,
        "engine": _ENGINE,
        "target": "{{ or $labels.pod $labels.target }}",
        "model": _MODEL + "{{ with $labels.namespace }} in {{ . }}{{ end }}",
        "thing": _THING,
        "on_its_host": _ON_ITS_HOST % {"instance": "$labels.instance"},
        "triage": _triage(),
        "now": partial(_with_value, _SAME_ENGINE),
        "waiting": partial(_with_value, _SAME_ENGINE, "kvpressure_requests_waiting"),
        "step": partial(_with_label, _SAME_ENGINE, "engine:kvpressure_step:info", "text", "{}"),
        "cause_text": _cause_text,
        "status": _with_label(_SAME_TARGET, 'kvpressure_target_status{status!="read"}', "text", ": {}"),
        "worst": _of_model("namespace_model:kvpressure_worst:info"),
        "failing": _of_model("namespace_model:kvpressure_failing:info"),
        "uneven": _of_model("namespace_model:kvpressure_hottest:info"),
        "of_autoscaler": f"{{{{ range {_query(_SAME_WORKLOAD, 'workload:kvpressure_autoscaler_room:replicas')} }}}}",
        "vllm_uneven": _of_model("engine:vllm_overflow:requests"),
        "model_label": _model_label,
        "model_run": _model_run(),
        "honored": _honored,
        "vllm": partial(_series, options.selector),
        "vllm_engine": _VLLM_ENGINE,
        "vllm_triage": _VLLM_TRIAGE,
        "vllm_with": _vllm_with,
        "also": f",{options.selector}" if options.selector else "",
        "plain": plain,
        **(more or {}),
    }
    try:
        return _compiled(text).render(context)
    except jinja2.TemplateSyntaxError as error:
        raise ConfigError([Problem(path, error.lineno, "", f"is no template: {error.message}")]) from None
    except jinja2.UndefinedError as error:
        raise ConfigError([Problem(path, None, "", f"uses what does not exist: {error.message}")]) from None


def _query(labels: Sequence[str], series: str) -> str:
    """Return the template expression that queries a series with the alert's own `labels`; it may end in matchers."""
    name, _, matchers = series.partition("{")
    inside = ",".join([*filter(None, [matchers.removesuffix("}")]), *(f"{label}=%q" for label in labels)])
    return f"query (printf `{name}{{{inside}}}` {' '.join(f'$labels.{label}' for label in labels)})"


def _with_label(labels: Sequence[str], series: str, label: str, text: str = "{}", otherwise: str = "") -> str:
    """Return a text with a label of the one series of an engine or target in place of `{}`, else `otherwise`."""
    before, _, after = text.partition("{}")
    other = f"{{{{ else }}}}{otherwise}" if otherwise else ""
    return f"{{{{ range {_query(labels, series)} }}}}{before}{{{{ .Labels.{label} }}}}{after}{other}{{{{ end }}}}"


def _of_model(series: str) -> str:
    """Return the template that queries what is said of engines of the alert's model, once for `_model_label`."""
    return f"{{{{ $engines := {_query(_SAME_MODEL, series)} | sortByLabel `target` }}}}"


def _model_label(label: str, text: str = "{}", otherwise: str = "") -> str:
    """Return a text with a label of the first of these engines by name in place of `{}`, else `otherwise`."""
    before, _, after = text.partition("{}")
    other = f"{{{{ else }}}}{otherwise}" if otherwise else ""
    return f"{{{{ with $engines }}}}{before}{{{{ . | first | label `{label}` }}}}{after}{other}{{{{ end }}}}"


def _with_value(labels: Sequence[str], series: str, text: str, how: str = "printf `%.0f`") -> str:
    """Return a text with the value of a series in place of `{}`; nothing where it has none."""
    before, _, after = text.partition("{}")
    return f"{{{{ range {_query(labels, series)} }}}}{before}{{{{ .Value | {how} }}}}{after}{{{{ end }}}}"


def _cause_text(cause: str, text: str, otherwise: str = "") -> str:
    """Return a text with the engine's detail of a cause, in words, in place of `{}`."""
    series = f'kvpressure_bottleneck_info{{cause="{cause}"}}'
    return _with_label(_SAME_ENGINE, series, "text", text, otherwise)


def _triage() -> str:
    """Return the command for the alert's engine or target: by its pod, or by its address."""
    named = "kvpressure triage {{ $labels.target }}"
    known = _with_label(_SAME_TARGET, "target:kvpressure_triage:info", "run", "{}", named)
    return f"{{{{ if $labels.pod }}}}{_TRIAGE_POD}{{{{ else }}}}{known}{{{{ end }}}}"


def _model_run() -> str:
    """Return the command of the first of these engines."""
    pods = "{{ if $labels.namespace }}kubectl -n {{ $labels.namespace }} get pods"
    return _model_label("run", "{}", f"{pods}{{{{ else }}}}systemctl status 'vllm*' 'kvpressure*'{{{{ end }}}}")


def _series(selector: str, name: str, *matchers: str) -> str:
    """Return a selector of the bundle's series, without braces where nothing is matched."""
    inside = ",".join(filter(None, [*matchers, selector]))
    return f"{name}{{{inside}}}" if inside else name


def _honored(series: str, *labels: str) -> str:
    """Return series with their own labels, which a Prometheus that does not honor them has renamed to exported_*."""
    for label in labels:
        series = f'label_replace({series}, "{label}", "$1", "exported_{label}", "(.+)")'
    return series


def _vllm_with(text: str, series: str, how: str = "printf `%.0f`") -> str:
    """Return a text with the value of a series for the alert's engine in place of `{}`; nothing without a value."""
    return _with_value(_SAME_VLLM, series, text, how)


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
_compiled: Final = cache(_ENVIRONMENT.from_string)
