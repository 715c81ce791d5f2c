"""Templates to text: delimiters that leave Prometheus' own `{{ }}` alone, and the words that templates share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import jinja2

from kvpressure.config.strict_yaml import ConfigError, Problem
from kvpressure.model.verdict import DETAILS
from kvpressure.runtimes.registry import ASSUMED
from kvpressure.tools.bundle.options import Options

_RANK: Final = "{{ if ne $labels.engine `0` }} (rank {{ $labels.engine }}){{ end }}"
_ENGINE: Final = "{{ $labels.model_name }} on {{ $labels.target }}" + _RANK
_TRIAGE: Final = (
    "{{ if $labels.pod }}kubectl kvpressure triage -n {{ $labels.namespace }} pod/{{ $labels.pod }}"
    "{{ else if match `^[^/ ]+:[0-9]+$` $labels.target }}kvpressure triage {{ $labels.target }}"
    "{{ else }}kvpressure triage URL{{ end }}"
)
_WORST: Final = (
    "{{ with query (printf `(%s) == on () group_left () max(%s)`%s) }}{{ with sortByLabel `target` . | first }}"
    "{{ if .Labels.pod }}kubectl kvpressure triage -n {{ .Labels.namespace }} pod/{{ .Labels.pod }}"
    "{{ else }}kvpressure triage {{ .Labels.target }}{{ end }}{{ end }}"
    "{{ else }}kubectl -n {{ $labels.namespace }} get pods{{ end }}"
)
_GONE: Final = (
    "{{ with query (%s) }}It has not answered for {{ . | first | value | humanizeDuration }}; "
    "what was seen before: {{ end }}"
)
_SAME_ENGINE: Final = ("cluster", "instance", "target", "model_name", "engine")
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
"""What tells vLLM's series of one engine from those of another; a label that there is not is equal to none."""

_VLLM_SINCE: Final = "{{ with query (%s) }}Since {{ (. | first | value | toTime).UTC.Format `15:04` }} UTC: {{ end }}"


def render(path: str, text: str, options: Options, more: Mapping[str, Any] | None = None) -> str:
    """Render one template; `path` is its name in messages. Raises ConfigError when it uses what does not exist."""
    now = Now(options.selector)
    context: dict[str, Any] = {
        "limits": options.thresholds,
        "thresholds_hash": options.thresholds.hash,
        "selector": options.selector,
        "engine": _ENGINE,
        "model": "{{ $labels.model_name }}{{ with $labels.namespace }} in {{ . }}{{ end }}",
        "triage": _TRIAGE,
        "worst": partial(_worst, options.selector),
        "now": now,
        "lately": Now(options.selector, look_back="10m"),
        "which": partial(_which, now),
        "vllm": partial(_series, options.selector),
        "vllm_engine": _VLLM_ENGINE,
        "vllm_triage": _VLLM_TRIAGE,
        "vllm_with": _vllm_with,
        "vllm_since": _vllm_since,
        "also": f",{options.selector}" if options.selector else "",
        "details": {cause.value: dict(meanings) for cause, meanings in DETAILS.items()},
        "remedies": {detail: remedy.title for detail, remedy in ASSUMED.advice.remedies.items()},
        "plain": plain,
        "gone": _GONE % now.query("kvpressure_engine_silent_seconds"),
        **(more or {}),
    }
    try:
        return _ENVIRONMENT.from_string(text).render(context)
    except jinja2.TemplateSyntaxError as error:
        raise ConfigError([Problem(path, error.lineno, "", f"is no template: {error.message}")]) from None
    except jinja2.UndefinedError as error:
        raise ConfigError([Problem(path, None, "", f"uses what does not exist: {error.message}")]) from None


def _worst(selector: str, *series: str) -> str:
    """Return the command for the alert's replica with the highest value of any of `series`; ties go by name.

    With `topk` any of them would do, another at each evaluation, and the text would never be the same.
    """
    either = " or ".join(_selected(one, selector, ("cluster", "namespace", "model_name")) for one in series)
    return _WORST % (either, either, 2 * " $labels.cluster $labels.namespace $labels.model_name" * len(series))


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
    """Return a text where `{}` stands for a series' value for the alert's engine; nothing where there is none."""
    before, after = text.split("{}")
    found = Now("", labels=_SAME_VLLM).query(series)
    return f"{{{{ with query ({found}) }}}}{before}{{{{ . | first | value | {how} }}}}{after}{{{{ end }}}}"


def _vllm_since(alert: str) -> str:
    """Return when the alert's expression began to hold for this engine, as the beginning of a sentence."""
    return _VLLM_SINCE % Now("", labels=_SAME_VLLM).query(f'ALERTS_FOR_STATE{{alertname="{alert}"}}')


class Now:
    """`now(series, how)`: another series' value for the alert's engine, as text for a description.

    `series` may end in matchers (`name{kind="e2e"}`), `how` is a Prometheus function such as humanize. Where the series
    is absent, the text is "unknown"; with a `look_back`, only where it has been absent for that long. `labels` have to
    be the alert's.
    """

    def __init__(self, selector: str, look_back: str = "", labels: Sequence[str] = _SAME_ENGINE) -> None:
        self._selector, self._labels, self._look_back = selector, labels, look_back

    def __call__(self, series: str, how: str = "humanize") -> str:
        """Return the template text."""
        found = f"{{{{ with query ({self.query(series)}) }}}}{{{{ . | first | value | {how} }}}}"
        return f"{found}{{{{ else }}}}unknown{{{{ end }}}}"

    def query(self, series: str) -> str:
        """Return the template expression that gives the query."""
        selected = _selected(series, self._selector, self._labels)
        values = " ".join(f"$labels.{label}" for label in self._labels)
        if self._look_back:
            selected = f"last_over_time({selected}[{self._look_back}])"
        return f"printf `{selected}` {values}"


def _which(now: Now, cause: str, texts: Mapping[str, str], otherwise: str = "") -> str:
    """Return the text of the detail that the engine's cause has had most in ten minutes.

    `otherwise` stands for a detail without a text, for none, and where no exporter exports any.
    """
    told = now.query(f'kvpressure_bottleneck_info{{cause="{cause}"}}')
    most = told.replace("printf `", "printf `topk(1, count_over_time(", 1).replace("}`", "}[10m]))`", 1)
    choices = "{{ else ".join(f"if eq $kind `{detail}` }}}}{text}" for detail, text in texts.items())
    known = f"{{{{ $kind := . | first | label `detail` }}}}{{{{ {choices}{{{{ else }}}}{otherwise}{{{{ end }}}}"
    return f"{{{{ with query ({most}) }}}}{known}{{{{ else }}}}{otherwise}{{{{ end }}}}"


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
