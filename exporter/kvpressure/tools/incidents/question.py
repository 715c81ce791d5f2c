"""What is looked for in the past of a Prometheus, and what tells one question from another."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Final

from kvpressure import __version__
from kvpressure.config.thresholds import Thresholds
from kvpressure.tools.incidents.client import Server
from kvpressure.tools.incidents.names import Selection
from kvpressure.tools.incidents.paging import Span

TENANT_HEADER: Final = "x-scope-orgid"


@dataclass(frozen=True, slots=True)
class Question:
    """What is looked for. `step` is None for as often as was scraped, but no oftener than every 15 s.

    `other` is a second setting of thresholds to compare with.
    """

    span: Span
    selection: Selection
    thresholds: Thresholds
    other: Thresholds | None = None
    step: float | None = None
    shortest_seconds: float = 120.0
    given: tuple[str, str] = ("", "")
    """The time in the user's words, `--since` and `--until`: those of a look back that is gone on with."""

    @property
    def settings(self) -> tuple[Thresholds, ...]:
        """The thresholds to judge by, one or two."""
        return (self.thresholds,) if self.other is None else (self.thresholds, self.other)

    def asked(self, server: Server) -> dict[str, Any]:
        """Return the question, to tell it from others.

        Of the tenant, whose name is never written down, a short hash.
        """
        tenant = next((value for name, value in server.headers.items() if name.lower() == TENANT_HEADER), "")
        return {
            "prometheus": server.url,
            "tenant": hashlib.sha256(tenant.encode()).hexdigest()[:8],
            "--since": self.given[0],
            "--until": self.given[1],
            "since": self.span.start,
            "until": self.span.end,
            "selector": self.selection.matchers,
            "step_seconds": self.step,
            "shortest_seconds": self.shortest_seconds,
            "thresholds": [one.hash for one in self.settings],
            "kvpressure": __version__,
        }
