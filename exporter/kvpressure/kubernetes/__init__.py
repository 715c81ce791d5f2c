"""All access to Kubernetes API servers; here its errors."""

from __future__ import annotations

from kvpressure.model.errors import SourceError


class KubeError(SourceError, reason="config"):
    """An error of a cluster: its own, or one of how it is reached.

    `status` is the API server's HTTP status, 0 without a response, and `message` its text.
    """

    def __init__(self, sentence: str, status: int = 0, message: str = "") -> None:
        super().__init__(sentence)
        self.status, self.message = status, message


class StatusError(KubeError, reason="http_status"):
    """The API server refuses a request with a status that has no type of its own."""


class UnauthorizedError(KubeError, reason="unauthorized"):
    """The API server does not accept the credentials (401)."""


class ForbiddenError(KubeError, reason="forbidden"):
    """The credentials may not do what was requested (403)."""


class GoneError(StatusError):
    """The resource version is too old (410): the resource has to be listed again."""


class KubectlError(KubeError, reason="kubectl"):
    """kubectl failed, or is not there."""
