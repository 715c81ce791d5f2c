"""What a reflector watches, its timing, and its sink."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

from kvpressure.kubernetes import ForbiddenError, UnauthorizedError
from kvpressure.model.errors import SourceError
from kvpressure.net.budget import BUDGET
from kvpressure.net.schedule import backoff_ticks

SHARE: Final = BUDGET.share("kubernetes")
"""What reading objects may take of the CPU."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """Timeouts and pauses.

    `watch_seconds`, plus or minus a fifth, is the timeout requested of the API server, which then ends the watch; one
    that is silent for `grace_seconds` longer hangs. `spacing_seconds` is the least time between two watches. Pauses
    after errors double from `retry_seconds` to `retry_limit_seconds`, after a refusal (401, 403) to
    `refused_limit_seconds`. Events of deleted pods are shown for `linger_seconds`; an unconfirmed condition of the node
    for `condition_seconds`.
    """

    page_items: int = 250
    list_seconds: float = 30.0
    open_seconds: float = 15.0
    watch_seconds: int = 240
    grace_seconds: float = 15.0
    spacing_seconds: float = 1.0
    retry_seconds: float = 1.0
    retry_limit_seconds: float = 30.0
    refused_limit_seconds: float = 60.0
    linger_seconds: float = 600.0
    condition_seconds: float = 120.0

    def pause_seconds(self, failures: int, failure: type[SourceError] | None) -> float:
        """Return the pause after so many failures in a row, the last one `failure`.

        It is random: all nodes' exporters lose the API server at once, and should not all return at once.
        """
        if not failures:
            return self.spacing_seconds
        limit = self.refused_limit_seconds if is_refusal(failure) else self.retry_limit_seconds
        skipped = backoff_ticks(failures, self.retry_seconds, limit)
        return self.retry_seconds * (1 + skipped) * random.uniform(0.8, 1.2)


def is_refusal(failure: type[SourceError] | None) -> bool:
    """Return whether it lasts until permissions change."""
    return failure is not None and issubclass(failure, ForbiddenError | UnauthorizedError)


_USER: Final = re.compile(r'User "([^"]{1,200})"')


def refused_user(message: str) -> str:
    """Return the user that the API server refuses, from the message of a 403."""
    return match[1] if (match := _USER.search(message)) else "our user"


R_contra = TypeVar("R_contra", contravariant=True)


class Sink(Protocol[R_contra]):
    """Receives the records of a reflector."""

    def replaced(self, records: Sequence[R_contra]) -> None:
        """Replace all records by those of a list."""

    def changed(self, record: R_contra, *, deleted: bool) -> None:
        """Add, change or delete one record."""


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource to watch: `plural` in `namespace` ("" for all), with a field selector.

    `source` and `target` are those of its health.
    """

    source: str
    plural: str
    namespace: str = ""
    target: str = ""
    params: Mapping[str, str] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """The resource's path under the API server's address."""
        return f"api/v1/namespaces/{self.namespace}/{self.plural}" if self.namespace else f"api/v1/{self.plural}"

    def __str__(self) -> str:
        return f"{self.plural} in {f'namespace {self.namespace}' if self.namespace else 'the whole cluster'}"
