"""The prevention checklist: a row per check. A new one is a function, a row here, and a line in docs/audit.md."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kvpressure.tools.audit.checks import evidence, limits, resources
from kvpressure.tools.audit.checks.context import Context
from kvpressure.tools.audit.engine import Engine
from kvpressure.tools.audit.model import Level, Verdict


@dataclass(frozen=True, slots=True)
class Check:
    """One item of the checklist. `title` is what should hold; `help` why, for people who see only the finding."""

    name: str
    level: Level
    title: str
    help: str
    judge: Callable[[Engine, Context], Verdict]


CHECKS: Final[tuple[Check, ...]] = (
    Check(
        "input-tokens",
        "error",
        "One request takes a small part of the KV cache",
        "One prompt may take as much of the KV cache as the longest one allowed. Where nothing is declared that is the "
        "model's own context length, often far more than anybody sends.",
        limits.input_tokens,
    ),
    Check(
        "output-tokens",
        "error",
        "The longest output is declared",
        "A request keeps its KV cache until its last token. Without a limit one request may run to the end of the "
        "context.",
        limits.output_tokens,
    ),
    Check(
        "max-num-seqs",
        "error",
        "As many sequences as the KV cache holds",
        "The server's own default depends on its version and on the GPU, and not on the KV cache: sequences above what "
        "fits are admitted and then preempted. Above max_num_batched_tokens it does not start, and at one or two there "
        "is no batch.",
        limits.declared,
    ),
    Check(
        "max-num-batched-tokens",
        "warning",
        "A step has no more tokens than the server itself would take",
        "The memory of the largest step is set aside at start and comes out of the KV cache; a long step also holds up "
        "everybody's next token. The default depends on version and GPU (2048 to 16384).",
        limits.batched_tokens,
    ),
    Check(
        "memory-target",
        "warning",
        "The server starts with its share of the GPU, and leaves room beside it",
        "Weights and one longest request must fit into gpu_memory_utilization, or the server ends at once. A lower "
        "share shrinks the KV cache and is right after a device OOM alone; above 0.95 little is left for all else.",
        resources.memory_share,
    ),
    Check(
        "gpus",
        "error",
        "As many GPUs as the command needs",
        "A server that divides its model among more GPUs than it gets does not start; GPUs that it leaves alone are "
        "paid for.",
        resources.gpus,
    ),
    Check(
        "shared-memory",
        "warning",
        "Several GPUs have shared memory",
        "Their processes exchange data in /dev/shm, which has 64 MiB in a container unless something larger is "
        "mounted: the server hangs or ends with a bus error.",
        resources.shared_memory,
    ),
    Check(
        "separate-long-requests",
        "warning",
        "Long and short requests have deployments of their own",
        "A long prompt takes the KV cache of many short ones, and where prompts are admitted whole it blocks every "
        "request behind it.",
        limits.separate,
    ),
    Check(
        "replicas",
        "warning",
        "At least two replicas",
        "With one replica a restart, the mitigation of most incidents, is an outage.",
        resources.replicas,
    ),
    Check(
        "memory-request",
        "warning",
        "Host memory is requested",
        "Without a request the pod is the first to be evicted or killed when the node runs short, and the scheduler "
        "knows nothing of what the weights need while they load.",
        resources.memory_request,
    ),
    Check(
        "limits-documented",
        "note",
        "It is written down where the limits come from",
        "A limit that nobody can explain is removed in the next incident, or kept for ever.",
        evidence.documented,
    ),
    Check(
        "monitoring",
        "warning",
        "The engine is monitored",
        "KV cache pressure is invisible from outside until requests time out.",
        evidence.monitored,
    ),
    Check(
        "alerts",
        "warning",
        "There are alerts on it",
        "Series that nobody looks at prevent nothing.",
        evidence.alerted,
    ),
    Check(
        "load-test",
        "note",
        "There is evidence of a load test",
        "Limits are guesses until traffic as long and as bursty as the real one has run against them.",
        evidence.load_tested,
    ),
)
