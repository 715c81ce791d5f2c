"""Where an engine runs: what advice needs to name it in commands and queries."""

from __future__ import annotations

from dataclasses import dataclass

from kvpressure.runtimes.advising import Advice
from kvpressure.runtimes.registry import named


@dataclass(frozen=True, slots=True)
class Place:
    """Where an engine runs, as far as known; every name may come from outside and is quoted before it is used.

    `runtime` is the name of what serves, "" when not known, and decides how flags are written. `kubernetes` is None
    when not known: then commands for both ways of running are given. `kind` is the workload's kind for kubectl
    (`deploy`, `statefulset`, ...), `url` is how whoever asks reaches the engine.
    """

    kubernetes: bool | None = None
    namespace: str = ""
    kind: str = "deploy"
    workload: str = ""
    pod: str = ""
    container: str = ""
    unit: str = ""
    port: int | None = None
    url: str = ""
    target: str = ""
    model_name: str = ""
    runtime: str = ""

    @property
    def advice(self) -> Advice:
        """How advice is put there."""
        return named(self.runtime).advice

    @property
    def title(self) -> str:
        """What serves there, for sentences."""
        return named(self.runtime).title

    @property
    def serving_port(self) -> int:
        """Where the engine's API is, or would be."""
        return self.port or self.advice.port

    @property
    def in_kubernetes(self) -> bool | None:
        """Said, or told by a name that only Kubernetes gives; None when not known."""
        if self.kubernetes is not None:
            return self.kubernetes
        return True if self.namespace or self.workload or self.pod else False if self.unit else None
