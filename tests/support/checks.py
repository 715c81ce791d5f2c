"""Recovery checks as Prometheus would answer them, on the series of one view."""

import re

from prometheus_client.parser import text_string_to_metric_families

from kvpressure.exposition import Snapshot
from kvpressure.exposition.text import render
from kvpressure.model.view import EngineView

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]

SELECTOR = re.compile(
    r"(absent\()?(?P<name>kvpressure_\w+)\{(?P<labels>[^}]*)\}\)?(?: (?P<sign>[<>=]=?) (?P<bound>[\d.]+))?"
)


def exported(view: EngineView) -> Series:
    """The engine's series by name and labels."""
    page = render(Snapshot(view.t, (view,)), openmetrics=False).decode()
    samples = (sample for family in text_string_to_metric_families(page) for sample in family.samples)
    return {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples}


def holds(line: str, series: Series) -> bool:
    """Whether a recovery check gives a result on the page as it is."""
    match = SELECTOR.search(line)
    assert match is not None, line
    wanted = set(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', match["labels"]))
    values = [value for (name, labels), value in series.items() if name == match["name"] and wanted <= labels]
    if line.startswith("absent("):
        return not values
    bound = float(match["bound"])
    compare = {"<": float.__lt__, "<=": float.__le__, ">": float.__gt__, ">=": float.__ge__, "==": float.__eq__}
    return any(compare[match["sign"]](value, bound) for value in values)
