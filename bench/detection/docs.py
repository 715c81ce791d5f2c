"""docs/detection.md: the tables, and how to read them."""

from __future__ import annotations

from collections.abc import Sequence

from bench.detection.judge import Outcome
from bench.detection.table import Table

_INTRO = """# How well causes are found

Written by `python -m bench.detection --write-docs`. {episodes} episodes: {recordings} recordings of a real vLLM,
labelled with what their client did, and {simulated} seeded runs of the simulator, at least 40 of every cause.

"""


def document(tables: Sequence[Table], outcomes: Sequence[Outcome]) -> str:
    """The page's text."""
    recordings = sum(outcome.group == "recording" for outcome in outcomes)
    intro = _INTRO.format(episodes=len(outcomes), recordings=recordings, simulated=len(outcomes) - recordings)
    return intro + "\n".join(table.markdown() for table in tables)
