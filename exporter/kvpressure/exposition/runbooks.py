"""The runbooks, one per alert: Markdown in the package, HTML for people, with the engine's names filled in.

The Markdown is ours, the names are untrusted: they are filled into code blocks only, quoted for the block's language.
"""

from __future__ import annotations

import functools
import itertools
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

from kvpressure.exposition import assets
from kvpressure.printable import clean
from kvpressure.runtimes.registry import ASSUMED, RUNTIMES

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

INDEX = "README"
"""The page that lists the runbooks and holds the steps they share."""

PLACEHOLDERS: Mapping[str, str] = {
    "$NAMESPACE": "namespace",
    "$POD": "pod",
    "$TARGET": "target",
    "$MODEL": "model",
    "$ENGINE": "engine",
    "$INSTANCE": "instance",
}
"""Placeholders of commands, and their URL parameters: the alert's label of that name, `model` for `model_name`."""

MAX_VALUE_CHARACTERS = 512
"""Longer than any value of our labels."""

_ADDRESS = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?")
"""A value of Prometheus' label `instance`; with `a.node:10405@elsewhere` a command would go elsewhere."""

_SLOT = re.compile("|".join(f"{re.escape(name)}\\b" for name in PLACEHOLDERS))
_MATCHER = re.compile(rf'\w+="({_SLOT.pattern})",?\s*')
_LINK = re.compile(r"([A-Za-z]+)\.md(#[\w-]*)?")
_MEANING = re.compile(r"\n## Meaning\n\n(.*?)[.:]\s", re.DOTALL)
_FOLDER: Final = Path(__file__).parents[1] / "runbooks"


def names() -> tuple[str, ...]:
    """Return the alerts that have a runbook."""
    stems = (file.stem for file in _FOLDER.glob("*.md"))
    return tuple(sorted(name for name in stems if name != INDEX))


def source(name: str) -> str:
    """Return the Markdown source of a runbook, or of `INDEX`. Raises KeyError."""
    if name != INDEX and name not in names():
        raise KeyError(name)
    return (_FOLDER / f"{name}.md").read_text(encoding="utf-8")


def for_people(name: str) -> str:
    """Return the source with every runtime's names for the flags in it; in `INDEX` with the list. Raises KeyError."""
    text = source(name)
    if name == INDEX:
        text = text.replace("\n## ", f"\n{_list()}\n## ", 1)
    return text + _flags_of_runtimes(text)


def _list() -> str:
    """Return a table of the runbooks, each with what it says first."""
    rows = ((name, " ".join(_MEANING.split(source(name))[1].split())) for name in names())
    return "| alert | meaning |\n|---|---|\n" + "".join(f"| [{name}]({name}.md) | {said} |\n" for name, said in rows)


def _flags_of_runtimes(text: str) -> str:
    # Runbooks are written in the flags of the assumed runtime.
    used = [limit for limit, flag in ASSUMED.advice.flags.limits.items() if flag in text]
    others = [runtime for runtime in RUNTIMES if runtime is not ASSUMED]
    if not used or not others:
        return ""
    columns = [ASSUMED, *others]
    rows = [[runtime.title for runtime in columns], ["---"] * len(columns)]
    rows += [
        [
            f"`{runtime.advice.flags.limits[limit]}`" if limit in runtime.advice.flags.limits else "-"
            for runtime in columns
        ]
        for limit in used
    ]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(["", "## The same flags elsewhere", "", *lines, ""])


def fill(code: str, language: str, values: Mapping[str, str]) -> str:
    """Return a code block with its placeholders filled in; `values` are by parameter, unknown placeholders stay.

    In `bash` a value becomes one word. In `promql` it becomes part of a string, and a matcher without a value is left
    out: an engine need not have a namespace, and a query without a result would look like good news.

    >>> fill("kubectl -n $NAMESPACE get pod/$POD", "bash", {"namespace": "a b", "pod": ""})
    "kubectl -n 'a b' get pod/$POD"
    >>> fill('kvpressure_symptom{namespace="$NAMESPACE",model_name="$MODEL"}', "promql", {"model": "m"})
    'kvpressure_symptom{model_name="m"}'
    """
    quote = {"bash": shlex.quote, "promql": _promql}.get(language)
    if quote is None:
        return code
    if language == "promql":
        code = _MATCHER.sub(lambda match: match[0] if values.get(PLACEHOLDERS[match[1]]) else "", code)
        code = code.replace(",}", "}").replace("{}", "")
    return _SLOT.sub(lambda match: quote(value) if (value := values.get(PLACEHOLDERS[match[0]])) else match[0], code)


def content_security_policy() -> str:
    """Return the Content-Security-Policy: the page's own style, and its form."""
    style = assets.digest(_css())
    return f"default-src 'none'; style-src {style}; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"


def _css() -> str:
    return assets.source("page.css") + assets.source("runbook.css")


@functools.cache
def _markdown() -> MarkdownIt:
    from markdown_it import MarkdownIt  # noqa: PLC0415 - with the first runbook requested

    return MarkdownIt("commonmark", {"html": False}).enable("table")


def page_html(name: str, query: Mapping[str, str], missing: str = "") -> str:
    """Return a runbook, or the list of all (`INDEX`), filled in from the query parameters. Raises KeyError.

    With `missing` it says that there is no runbook of that name.
    """
    markdown = _markdown()
    values = _values(query)
    text = for_people(name)
    tokens = markdown.parse(text)
    parameters = f"?{urlencode(values)}" if values else ""
    for token in tokens:
        _finish(token, values, parameters)
    _name_headings(tokens)
    return assets.render(
        "runbook",
        title="Runbooks" if name == INDEX else name,
        body=markdown.renderer.render(tokens, markdown.options, {}),
        fields=[(parameter, values.get(parameter, "")) for slot, parameter in PLACEHOLDERS.items() if slot in text],
        query=parameters,
        missing=missing,
        css=_css(),
    )


def _values(query: Mapping[str, str]) -> dict[str, str]:
    """Return the known parameters without control characters; `instance` only where it is an address."""
    values = {
        parameter: clean(query[parameter])
        for parameter in PLACEHOLDERS.values()
        if len(query.get(parameter, "x" * (MAX_VALUE_CHARACTERS + 1))) <= MAX_VALUE_CHARACTERS
    }
    if not _ADDRESS.fullmatch(values.get("instance", "")):
        values.pop("instance", None)
    return values


def _finish(token: Token, values: Mapping[str, str], query: str) -> None:
    """Fill in a code block, or make links to runbooks links to their pages."""
    if token.type == "fence":
        token.content = fill(token.content, token.info.strip(), values)
    for child in token.children or ():
        match = _LINK.fullmatch(str(child.attrs.get("href", "")))
        if child.type == "link_open" and match:
            page = "./" if match[1] == INDEX else match[1]
            child.attrSet("href", f"{page}{query}{match[2] or ''}")


def _name_headings(tokens: list[Token]) -> None:
    """Set the ids of headings as Git hosts do, for links to them."""
    for heading, title in itertools.pairwise(tokens):
        if heading.type == "heading_open":
            heading.attrSet("id", re.sub(r"[^\w -]", "", title.content.lower()).replace(" ", "-"))


def _promql(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"')
