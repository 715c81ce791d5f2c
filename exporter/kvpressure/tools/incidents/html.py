"""A look back as one HTML file with its pictures: nothing is loaded from anywhere, and nothing in it runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jinja2

from kvpressure.exposition.wording import clock, duration, percent
from kvpressure.model.catalogue import CATALOGUE as CAUSES
from kvpressure.model.verdict import Cause
from kvpressure.printable import clean
from kvpressure.tools.incidents import pictures, words


def report(document: Mapping[str, Any]) -> str:
    """Return the page."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("kvpressure.tools.incidents", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    return environment.get_template("incidents.html.j2").render(
        document=document,
        summary=list(words.summary(document)),
        words=words,
        pictures=pictures,
        look=lambda one: CAUSES[Cause(one["cause"])],
        clock=clock,
        duration=duration,
        percent=percent,
    )


def _shown(value: Any) -> Any:
    """Texts without what moves a cursor or turns text around; markup stays."""
    return clean(value) if type(value) is str else value
