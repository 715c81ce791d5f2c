"""All access to Kubernetes API servers, with one client; here its errors, and requests in the words of RBAC."""

from __future__ import annotations

from dataclasses import dataclass

from kvpressure.model.errors import SourceError


@dataclass(frozen=True, slots=True)
class Action:
    """A request in the words of RBAC, for error messages. Without a namespace it is for all of them."""

    verb: str
    resource: str
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        where = f"in namespace {self.namespace}" if self.namespace else "in the whole cluster"
        return f"{self.verb} {self.resource}{f' {self.name}' if self.name else ''} {where}"


class KubeError(SourceError):
    """An error of a cluster: a sentence that says what happened, where, and what to do.

    `reason` is the word by which it is counted. `status` is the API server's HTTP status, 0 without a response, and
    `message` its text; `cause` is the end of the sentence, without its subject.
    """

    def __init__(
        self, sentence: str, status: int = 0, *, reason: str = "config", message: str = "", cause: str = ""
    ) -> None:
        super().__init__(reason, sentence)
        self.status, self.message, self.cause = status, message, cause


class GoneError(KubeError):
    """The resource version is too old (410): the resource has to be listed again."""
