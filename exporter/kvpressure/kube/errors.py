"""The one error of this package."""

from __future__ import annotations


class KubeError(Exception):
    """Something about the cluster that the user has to know: one sentence saying what happened, where, what to do.

    `status` is the API server's HTTP status where it answered with one, 0 otherwise.
    """

    def __init__(self, sentence: str, status: int = 0) -> None:
        super().__init__(sentence)
        self.status = status
