"""Everything that is said to a Kubernetes API server: one client, at a prompt or on a node.

Here is what goes wrong, and what a request does in the words of its permissions.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvpressure.model.record import SourceError


@dataclass(frozen=True, slots=True)
class Action:
    """What a request does, as RBAC names it: for sentences when it is refused. Without a namespace, in all of them."""

    verb: str
    resource: str
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        where = f"in namespace {self.namespace}" if self.namespace else "in the whole cluster"
        return f"{self.verb} {self.resource}{f' {self.name}' if self.name else ''} {where}"


class KubeError(SourceError):
    """Something about the cluster that people have to know: one sentence saying what happened, where, what to do.

    `reason` is the word by which it is counted. `status` is the API server's HTTP status where it answered with one,
    0 otherwise, and `message` what it said then; `cause` the end of the sentence without what it is about.
    """

    def __init__(
        self, sentence: str, status: int = 0, *, reason: str = "config", message: str = "", cause: str = ""
    ) -> None:
        super().__init__(reason, sentence)
        self.status, self.message, self.cause = status, message, cause


class GoneError(KubeError):
    """The resource version is too old (410): everything has to be listed anew."""
