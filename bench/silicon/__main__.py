"""`python -m bench.silicon`: tables of step times, out of aiconfigurator-core, and how near they are to it.

    python3.12 -m venv .venv-silicon
    .venv-silicon/bin/pip install --require-hashes -r bench/silicon/requirements.txt
    .venv-silicon/bin/python -m bench.silicon make            # capacity/step_tables/*.json, and answers for the tests
    .venv-silicon/bin/python -m bench.silicon check           # the tables beside the library, at random steps
    .venv/bin/python -m bench.silicon predict                 # `whatif --gpu --model` beside the lab, in .venv

The library is a dependency of this command alone: 80 MB, and 300 MB of what it needs. Names choose tables.

Random steps are of decoding, of one chunk or several equal ones, and mixed.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from kvpressure.capacity.silicon import Library, Made, provenance, table, written
from kvpressure.simulation.step_table import SECONDS, Chunk, StepTable, parse

TABLES: Final = (
    Made("llama-3.1-8b.h100_sxm", "meta-llama/Meta-Llama-3.1-8B", "h100_sxm", 32),
    Made("llama-3.1-8b.l40s", "meta-llama/Meta-Llama-3.1-8B", "l40s", 32),
    Made("llama-3.1-8b.l40s.kv8", "meta-llama/Meta-Llama-3.1-8B", "l40s", 32, kv_bits=8),
    Made("llama-3.1-8b.b200_sxm", "meta-llama/Meta-Llama-3.1-8B", "b200_sxm", 32),
    Made("llama-3.1-8b.a100_sxm", "meta-llama/Meta-Llama-3.1-8B", "a100_sxm", 32),
    Made("llama-3.1-70b.h100_sxm.tp4", "meta-llama/Meta-Llama-3.1-70B", "h100_sxm", 80, tensor_parallel=4),
    Made("qwen3-8b.h100_sxm", "Qwen/Qwen3-8B", "h100_sxm", 36),
    Made("qwen3-32b.h200_sxm", "Qwen/Qwen3-32B", "h200_sxm", 64),
    Made("qwen3-32b.h100_sxm.tp2", "Qwen/Qwen3-32B", "h100_sxm", 64, tensor_parallel=2),
    Made("qwen3-32b-fp8.h100_sxm.kv8", "Qwen/Qwen3-32B-FP8", "h100_sxm", 64, weight_bits=8, kv_bits=8),
    Made("qwen3-30b-a3b.h100_sxm", "Qwen/Qwen3-30B-A3B", "h100_sxm", 48, experts=True),
    Made(
        "qwen3-30b-a3b-fp8.h100_sxm.kv8",
        "Qwen/Qwen3-30B-A3B-FP8",
        "h100_sxm",
        48,
        weight_bits=8,
        kv_bits=8,
        experts=True,
    ),
    Made("qwen3-30b-a3b.h200_sxm.tp2", "Qwen/Qwen3-30B-A3B", "h200_sxm", 48, tensor_parallel=2, experts=True),
    Made("llama-3.1-8b.h200_sxm", "meta-llama/Meta-Llama-3.1-8B", "h200_sxm", 32),
    Made("llama-3.1-70b.a100_sxm.tp4", "meta-llama/Meta-Llama-3.1-70B", "a100_sxm", 80, tensor_parallel=4),
    Made("llama-3.1-70b.h200_sxm.tp2", "meta-llama/Meta-Llama-3.1-70B", "h200_sxm", 80, tensor_parallel=2),
    Made("llama-3.1-70b.b200_sxm.tp2", "meta-llama/Meta-Llama-3.1-70B", "b200_sxm", 80, tensor_parallel=2),
    Made("qwen3-8b.a100_sxm", "Qwen/Qwen3-8B", "a100_sxm", 36),
    Made("qwen3-8b.l40s", "Qwen/Qwen3-8B", "l40s", 36),
    Made("qwen3-8b.h200_sxm", "Qwen/Qwen3-8B", "h200_sxm", 36),
    Made("qwen3-32b.a100_sxm.tp2", "Qwen/Qwen3-32B", "a100_sxm", 64, tensor_parallel=2),
    Made("qwen3-32b.b200_sxm", "Qwen/Qwen3-32B", "b200_sxm", 64),
    Made("qwen3-30b-a3b.h200_sxm", "Qwen/Qwen3-30B-A3B", "h200_sxm", 48, experts=True),
    Made("qwen3-30b-a3b.b200_sxm", "Qwen/Qwen3-30B-A3B", "b200_sxm", 48, experts=True),
)


SEQUENCES: Final = (1, 512)
CONTEXT: Final = (16, 120_000)
POOL_TOKENS: Final = 4_000_000
"""No card holds more."""
STEP_TOKENS: Final = (16, 32_768)
MOST_CHUNKS: Final = 8
BEFORE: Final = (64, 100_000)


class Shape(NamedTuple):
    """A step: sequences that decode and their mean context; chunks, all alike."""

    sequences: int
    context: int
    chunks: int
    tokens: int
    before: int


def shapes(count: int, seed: int) -> Iterator[Shape]:
    """Return random steps, evenly on logarithmic scales."""
    rng = random.Random(seed)
    for _ in range(count):
        kind = rng.choice(("decode", "prompts", "mixed"))
        sequences = _even(rng, *SEQUENCES) if kind != "prompts" else 0
        context = _even(rng, CONTEXT[0], min(CONTEXT[1], POOL_TOKENS // sequences)) if sequences else 0
        if kind == "decode":
            yield Shape(sequences, context, 0, 0, 0)
            continue
        total = _even(rng, *STEP_TOKENS)
        chunks = min(rng.choice((1, 1, 1, 2, 3, MOST_CHUNKS)), total // 2)
        before = 0 if rng.random() < 0.5 else _even(rng, *BEFORE)
        yield Shape(sequences, context, chunks, total // chunks, before)


def distances(table: StepTable, library: Library, count: int, seed: int) -> list[float]:
    """Return by which shares the table differs from the library, the smallest first."""
    found = []
    for shape in shapes(count, seed):
        chunks = [Chunk(shape.tokens, shape.before)] * shape.chunks
        seconds = table.seconds(shape.sequences, shape.context, chunks)
        found.append(abs(seconds / SECONDS / library.step(*shape) - 1))
    return sorted(found)


def _even(rng: random.Random, low: int, high: int) -> int:
    return round(math.exp(rng.uniform(math.log(low), math.log(max(low, high)))))


ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / "exporter" / "kvpressure" / "capacity" / "step_tables"
ANSWERS: Final = ROOT / "tests" / "fixtures" / "silicon.json"
MAX_BYTES: Final = 50_000
MAX_MEDIAN: Final = 0.01
STEPS: Final = 3_000
RECORDED: Final = 12
"""Answers of the library a table, which the tests hold it to without the library."""
SEED: Final = 28


def main() -> int:
    """Make tables, or compare them; 1 where one is too large or too far from the library."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("make", "check", "predict"))
    parser.add_argument("names", nargs="*", help="tables, or beginnings of their names; all when none is given")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--seeds", type=int, nargs="+", default=[201, 202], help="of what is predicted")
    parser.add_argument("--write-docs", action="store_true", help="what is predicted, into accuracy/cards.md")
    options = parser.parse_args()
    if options.what == "predict":
        from bench.silicon.predict import report  # noqa: PLC0415 - what the library's environment lacks

        return report(options.seeds, write=options.write_docs)
    wanted = [made for made in TABLES if not options.names or any(map(made.name.startswith, options.names))]
    if options.what == "make":
        return _make(wanted)
    return _check(wanted, options.steps, options.seed)


def _make(wanted: Sequence[Made]) -> int:
    about = {"command": "python -m bench.silicon make", **provenance(), "date": f"{datetime.now(UTC):%Y-%m-%d}"}
    large, answers = 0, json.loads(ANSWERS.read_text()) if ANSWERS.exists() else {}
    for made in wanted:
        library = Library(made)
        text = written(table(made, library, about))
        (FOLDER / f"{made.name}.json").write_text(text)
        answers[made.name] = [_answer(library, shape) for shape in shapes(RECORDED, SEED)]
        print(f"{made.name:32} {len(text):6} bytes", flush=True)
        large += len(text) > MAX_BYTES
    lines = (f"{json.dumps(name)}: {json.dumps(rows)}" for name, rows in sorted(answers.items()))
    ANSWERS.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    return int(large > 0)


def _answer(library: Library, shape: Shape) -> list[Any]:
    return [*shape, round(library.step(*shape), 1)]


def _check(wanted: Sequence[Made], steps: int, seed: int) -> int:
    far = 0
    for made in wanted:
        table_ = parse((FOLDER / f"{made.name}.json").read_bytes())
        shares = distances(table_, Library(made), steps, seed)
        print(f"{made.name:32} median {median(shares):.2%}, worst {shares[-1]:.2%} of {steps} steps", flush=True)
        far += median(shares) > MAX_MEDIAN
    return int(far > 0)


if __name__ == "__main__":
    sys.exit(main())
