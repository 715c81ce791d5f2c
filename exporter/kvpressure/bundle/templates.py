"""Templates to text: delimiters that leave Prometheus' own `{{ }}` alone, and the words that templates share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import jinja2

from kvpressure.bundle.options import Options
from kvpressure.strict_yaml import ConfigError, Problem

_RANK: Final = "{{ if ne $labels.engine `0` }} (rank {{ $labels.engine }}){{ end }}"
_ENGINE: Final = "{{ $labels.model_name }} on {{ $labels.target }}" + _RANK
_SAME_ENGINE: Final = ("instance", "target", "model_name", "engine")


def render(path: str, text: str, options: Options, more: Mapping[str, Any] | None = None) -> str:
    """Render one template; `path` is its name in messages. Raises ConfigError when it uses what does not exist."""
    context: dict[str, Any] = {
        "limits": options.thresholds,
        "thresholds_hash": options.thresholds.hash,
        "selector": options.selector,
        "engine": _ENGINE,
        "now": Now(options.selector),
        **(more or {}),
    }
    try:
        return _ENVIRONMENT.from_string(text).render(context)
    except jinja2.TemplateSyntaxError as error:
        raise ConfigError([Problem(path, error.lineno, "", f"is no template: {error.message}")]) from None
    except jinja2.UndefinedError as error:
        raise ConfigError([Problem(path, None, "", f"uses what does not exist: {error.message}")]) from None


class Now:
    """`now(series, how)`: another series' value for the alert's engine, as text for a description.

    `series` may end in matchers (`name{kind="e2e"}`), `how` is a Prometheus function such as humanize. Where the series
    is absent, the text is "unknown".
    """

    def __init__(self, selector: str) -> None:
        self._selector = selector

    def __call__(self, series: str, how: str = "humanize") -> str:
        """The template text."""
        name, _, matchers = series.partition("{")
        inside = [self._selector, *filter(None, [matchers.removesuffix("}")])]
        inside += [f"{label}=%q" for label in _SAME_ENGINE]
        values = " ".join(f"$labels.{label}" for label in _SAME_ENGINE)
        query = f"printf `{name}{{{','.join(inside)}}}` {values}"
        return f"{{{{ with query ({query}) }}}}{{{{ . | first | value | {how} }}}}{{{{ else }}}}unknown{{{{ end }}}}"


def plain(value: Any) -> Any:
    """Numbers as people write them: 0.9, 300, never 300.0 or 3e+02."""
    if not isinstance(value, float):
        return value
    return str(int(value)) if value.is_integer() else repr(value)


def percent(ratio: float) -> str:
    """A ratio in words: 0.85 is 85 %."""
    return f"{ratio * 100:.3g} %"


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
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
    environment.filters["percent"] = percent
    return environment


_ENVIRONMENT: Final = _environment()
