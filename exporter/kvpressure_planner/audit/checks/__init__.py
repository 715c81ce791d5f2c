"""The prevention checklist: a row per check. A new one is a function, a row here, and a line in docs/audit.md."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from kvpressure_planner.audit.checks import evidence, limits, probes, resources
from kvpressure_planner.audit.checks.context import Context
from kvpressure_planner.audit.engine import Engine
from kvpressure_planner.audit.model import Level, Place, Verdict


@dataclass(frozen=True, slots=True)
class Check:
    """One item of the checklist: `judge` returns None where none of the files describes what it is about.

    A verdict is about the place `at`, unless it names another.
    """

    name: str
    level: Level
    judge: Callable[[Engine, Context], Verdict | None]
    at: Callable[[Engine], Place] = attrgetter("place")

    @property
    def title(self) -> str:
        """What should hold: the first line of the function's docstring."""
        return self._words[0].removeprefix("Check: ").removesuffix(".")

    @property
    def help(self) -> str:
        """The reason, for readers of the finding alone: the rest of the docstring."""
        return " ".join(self._words[2:])

    @property
    def _words(self) -> list[str]:
        return (inspect.getdoc(self.judge) or "").split("\n")


def _limit(name: str) -> Callable[[Engine], Place]:
    return lambda engine: engine.limit_place(name)


CHECKS: Final[tuple[Check, ...]] = (
    Check("input-tokens", "error", limits.input_tokens, _limit("max_model_len")),
    Check("output-tokens", "error", limits.output_tokens, _limit("max_output_tokens")),
    Check("max-num-seqs", "error", limits.declared, _limit("max_num_seqs")),
    Check("max-num-batched-tokens", "warning", limits.batched_tokens, _limit("max_num_batched_tokens")),
    Check("options", "error", limits.options_known, lambda engine: engine.arguments_place()),
    Check("memory-target", "warning", resources.memory_share, _limit("gpu_memory_utilization")),
    Check("gpus", "error", resources.gpus, lambda engine: engine.item.place(engine.resources.at or engine.at)),
    Check("shared-memory", "warning", resources.shared_memory),
    Check("separate-long-requests", "warning", limits.separate, _limit("max_model_len")),
    Check("replicas", "warning", resources.replicas, lambda engine: engine.replicas.place or engine.place),
    Check("memory-request", "warning", resources.memory_request, lambda engine: engine.item.place(engine.resources.at)),
    Check("probes", "warning", probes.start),
    Check("limits-documented", "note", evidence.documented, lambda engine: engine.annotation_place(evidence.LIMITS)),
    Check("monitoring", "warning", evidence.monitored),
    Check("alerts", "warning", evidence.alerted),
    Check("load-test", "note", evidence.load_tested, lambda engine: engine.annotation_place(evidence.LOAD_TEST)),
)
