"""Recorded traffic of a production chat: when which prompt came, known by the ids of its blocks, and as tokens again.

The trace is that of Mooncake (kvcache-ai/Mooncake, `FAST25-release/traces/conversation_trace.jsonl`, Apache-2.0). Each
line has `timestamp` (ms), `input_length`, `output_length` and `hash_ids`, one for each 512 tokens of the prompt:
prompts that begin with the same ids begin with the same text. Only an excerpt of a few lines is committed.
"""

import json
import lzma
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.lab.regime import Load, Regime

BLOCK: Final = 512
FIRST: Final = 100
"""Block id 0 is a run of this token. Answers consist of another one, so they are never found: the trace has them in the
next prompt, under ids of their own."""
ROOT: Final = Path(__file__).parents[2]
EXCERPT: Final = ROOT / "tests" / "fixtures" / "lab" / "mooncake-excerpt.jsonl"
WHOLE: Final = Path("shared") / "data" / "mooncake-conversation.jsonl.xz"
"""Beside the repository, or beside a folder that holds it."""


class TraceMissingError(Exception):
    """The trace is not where it is looked for."""


@dataclass(frozen=True, slots=True)
class Row:
    """One request: seconds from the beginning, lengths in tokens, the ids of its prompt's blocks."""

    t: float
    length: int
    output: int
    ids: tuple[int, ...]

    @property
    def session(self) -> tuple[int, ...]:
        """The same for requests of one conversation: the first id after that of the prompt that all share."""
        return self.ids[1:2] or (self.ids[0], self.length)

    @property
    def tokens(self) -> list[int]:
        """The prompt: each block a run of one token of its own, the last one as long as it is."""
        runs = [token for number in self.ids for token in [FIRST + number] * BLOCK]
        return runs[: self.length]


def whole() -> Path:
    """Where the trace is. Raises TraceMissingError."""
    found = next((path for folder in ROOT.parents if (path := folder / WHOLE).exists()), None)
    if found is None:
        raise TraceMissingError(f"there is no {WHOLE} in any folder that holds the repository")
    return found


def read(path: Path) -> list[Row]:
    """Every request, in order."""
    content = path.read_bytes()
    text = lzma.decompress(content) if path.suffix == ".xz" else content
    return [_row(json.loads(line)) for line in text.splitlines()]


def chosen(rows: Sequence[Row], share: float, seed: int) -> list[Row]:
    """Requests of that share of the sessions, whole sessions; a larger share has those of a smaller one."""
    return [row for row in rows if random.Random(f"{seed}/{row.session}").random() < share]


def requests(regime: Regime, load: Load) -> list[Row]:
    """What a load that names a trace sends in the time, of what the engine would take. Raises TraceMissingError."""
    path = whole() if load.trace == "mooncake" else ROOT / load.trace
    most, seconds = regime.flags.max_model_len, regime.seconds - load.begin
    rows = chosen(read(path), load.share, regime.seed)
    return [row for row in rows if row.t < seconds and row.length + row.output <= most]


def _row(line: dict[str, object]) -> Row:
    milliseconds, length, output, ids = (
        line[name] for name in ("timestamp", "input_length", "output_length", "hash_ids")
    )
    return Row(float(milliseconds) / 1000, int(length), max(1, int(output)), tuple(ids))  # type: ignore[arg-type, call-overload]
