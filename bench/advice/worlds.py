"""`python -m bench.advice.worlds FOLDER`: what is predicted of changes, beside what another simulator did with them.

FOLDER has `outcomes.json`, a list of changes with tokens/s and p95 seconds before and after, and their recordings.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from kvpressure.config.thresholds import load_thresholds
from kvpressure.simulation import config_changes
from kvpressure.simulation.calibrate import Given
from kvpressure.simulation.config_changes import ConfigChange
from kvpressure.simulation.consequences import Model, Span
from kvpressure.simulation.models import model_of
from kvpressure_planner.cli.whatif.source import recorded

CHANGES: Final[Mapping[str, Callable[[float, float], ConfigChange]]] = {
    "max-num-seqs": lambda value, _: config_changes.sequences(value),
    "replicas": lambda value, _: config_changes.replicas(int(value)),
    "kv-cache-tokens": lambda value, pool: config_changes.pool("kv_cache_tokens", value / pool, value),
}


def model_and_pool(folder: Path, row: Mapping[str, Any]) -> tuple[Model, float]:
    """Return the model of a recording at its end, and the tokens of its pool."""
    thresholds = load_thresholds()
    view = recorded(folder / f"{row['recording']}.jsonl.xz", None, thresholds)[0]
    limits = view.limits.with_declared({name: row[name] for name in ("max_num_seqs", "max_num_batched_tokens")})
    pool = limits.kv_capacity_tokens
    assert pool is not None
    return model_of(Given(view.observed, limits, thresholds)), pool.value


def main() -> None:
    """Print each change, and errors for closed and open arrivals apart."""
    parser = argparse.ArgumentParser(prog="python -m bench.advice.worlds", description=__doc__)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    if not (folder / "outcomes.json").exists():
        parser.exit(
            2, f"{folder} has no outcomes.json: give the folder of another simulator's recordings and outcomes\n"
        )
    models: dict[str, tuple[Model, float]] = {}
    errors: defaultdict[tuple[str, str], list[tuple[float, bool, float]]] = defaultdict(list)
    for row in json.loads((folder / "outcomes.json").read_text()):
        name = row["recording"]
        model, pool = models.get(name) or models.setdefault(name, model_and_pool(folder, row))
        key, value = row["set"].split("=")
        figures = model.figures([CHANGES[key](float(value), pool)])
        arrivals = "closed" if row["clients"] == "closed" else "open"
        if figures is None or figures.doubt:
            print(f"{name:14} {row['set']:24} no number: {'' if figures is None else figures.doubt}")
            continue
        shown = []
        for what, span, truth in (
            ("tokens/s", figures.tokens_per_second, row["after"][0]),
            ("p95", figures.latency_p95, row["after"][1]),
        ):
            error, inside = span.value / truth - 1, span.low <= truth <= span.high
            errors[arrivals, what].append((abs(error), inside, _width(span)))
            shown.append(f"{what} {truth:.5g} told {span.value:.5g} ({span.low:.4g} to {span.high:.4g}) {error:+.0%}")
        print(f"{name:14} {row['set']:24} {'; '.join(shown)}")
    for (arrivals, what), found in errors.items():
        median, most = statistics.median(one[0] for one in found), max(one[0] for one in found)
        inside, width = sum(one[1] for one in found), statistics.median(one[2] for one in found)
        print(
            f"{arrivals:7} {what:9} median {median:.0%}, largest {most:.0%}, inside {inside} of {len(found)}, "
            f"median width ± {width:.0%}"
        )


def _width(span: Span) -> float:
    return (span.high - span.low) / 2 / span.value


if __name__ == "__main__":
    main()
