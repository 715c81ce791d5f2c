"""The errors of this package."""

from __future__ import annotations

from kvpressure.model.errors import SourceError


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
