"""What the example of remote write in docs/scaling.md keeps: every series that an alert uses."""

import re
from typing import Any

import yaml

from tests.support import built
from tests.support.tools import ROOT

KEPT = re.search(r"regex: (kvpressure_\(.*)", (ROOT / "docs" / "scaling.md").read_text())
METRIC = re.compile(r"\b(?:[a-z_]+:)?kvpressure_[a-z0-9_:]*\b|\bprocess_start_time_seconds\b|\bup(?=\{)")


def texts(rule: dict[str, Any]) -> list[str]:
    """The expression, and the queries within annotations."""
    return [rule["expr"], *(text for text in rule.get("annotations", {}).values() if "query" in text)]


def test_series_that_alerts_use_leave_the_cluster() -> None:
    """Series that recording rules make are made where all series are: then what these are made of."""
    assert KEPT is not None
    files = map(yaml.safe_load, (path.read_text() for path in (built.bundle() / "prometheus").rglob("*.yaml")))
    rules = [rule for file in files for group in file.get("groups", ()) for rule in group["rules"]]
    recorded = {rule["record"]: rule for rule in rules if "record" in rule}
    waiting, used = [rule for rule in rules if "alert" in rule], set[str]()
    assert len(waiting) >= 6
    while waiting:
        new = {name for text in texts(waiting.pop()) for name in METRIC.findall(text)} - used
        used |= new
        waiting += [recorded[name] for name in new if name in recorded]
    series = {name for name in used if ":" not in name}
    assert len(series) > 10
    assert sorted(name for name in series if not re.fullmatch(KEPT[1], name)) == []
