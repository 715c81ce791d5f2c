"""What is known of a target's runs so far, under `.cache/fuzz/<target>/`: a run goes on where the last one ended."""

import base64
import json
import os
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

FOLDER = Path(__file__).parents[2] / ".cache" / "fuzz"


@dataclass(slots=True)
class State:
    """Totals over all runs; `batches` have been run with `seed`, and `kept` is the corpus that they left.

    `published_inputs` and `published_seconds` of them are in `results.json` already.
    """

    seed: int
    batches: int = 0
    inputs: int = 0
    cpu_seconds: float = 0.0
    published_inputs: int = 0
    published_seconds: float = 0.0
    slowest_seconds: float = 0.0
    peak_mib: float = 0.0
    steps: int = 0
    kept: list[bytes] = field(default_factory=list)


def load(target: str, seed: int, folder: Path = FOLDER) -> State:
    """The state of `target`, a new one where there is none or it was made with another seed."""
    path = folder / target / "state.json"
    if not path.exists():
        return State(seed)
    state = State(**json.loads(path.read_text()))
    state.kept = [base64.b64decode(line) for line in (folder / target / "corpus").read_text().splitlines()]
    if state.seed != seed:  # its inputs count all the same, and its corpus is as good
        state.seed, state.batches = seed, 0
    return state


def save(target: str, state: State, folder: Path = FOLDER) -> None:
    """Write the state; a run that is killed meanwhile leaves the one before."""
    (folder / target).mkdir(parents=True, exist_ok=True)
    written = asdict(state) | {"kept": []}
    _replace(folder / target / "corpus", "".join(f"{base64.b64encode(data).decode()}\n" for data in state.kept))
    _replace(folder / target / "state.json", json.dumps(written, indent=1))


def unpublished(target: str, folder: Path = FOLDER) -> State | None:
    """The state of `target` with what is not published yet as its totals; None where there is nothing. Counts it."""
    if not (folder / target / "state.json").exists():
        return None
    whole = load(target, json.loads((folder / target / "state.json").read_text())["seed"], folder)
    inputs, seconds = whole.inputs - whole.published_inputs, whole.cpu_seconds - whole.published_seconds
    save(target, replace(whole, published_inputs=whole.inputs, published_seconds=whole.cpu_seconds), folder)
    return replace(whole, inputs=inputs, cpu_seconds=seconds) if inputs > 0 else None


def _replace(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text)
    os.replace(new, path)  # noqa: PTH105 - atomic, and the same
