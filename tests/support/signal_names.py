"""The signals that runtimes may carry, out of docs/internals/signals.md."""

from __future__ import annotations

import re

from tests.support.tools import ROOT

PAGE = ROOT / "docs/internals/signals.md"


def signals(title: str) -> dict[str, str]:
    """Return the signals of one section with their meaning, in its order."""
    section = PAGE.read_text().partition(f"## {title}\n")[2].partition("\n## ")[0]
    return dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", section, re.MULTILINE))


GAUGES, COUNTERS, HISTOGRAMS = map(signals, ("Gauges", "Counters", "Histograms"))
OWN_GAUGES = signals("Gauges of some runtimes alone")
