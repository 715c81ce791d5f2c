"""Failed readings of the world, a type for each reason by which they are counted.

Here are those that several sources raise; what only one knows is in its own file.
"""

from __future__ import annotations

from typing import Self


class SourceError(Exception):
    """One failed reading. `reason` is the stable word by which its type is counted, the sentence is for people.

    The sentence says what happened, where and what to do; it holds no secrets and no unbounded foreign text
    (pass foreign text through `printable.brief`).
    """

    reason = "other"

    def __init_subclass__(cls, reason: str = "") -> None:
        """Give the type its reason; without one it has its bases'."""
        if reason:
            cls.reason = reason

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence)
        self.sentence = sentence

    def saying(self, sentence: str) -> Self:
        """Return an error of the same type with another sentence."""
        said = type(self).__new__(type(self), sentence)
        vars(said).update(vars(self) | {"sentence": sentence})
        return said


class InternalError(SourceError, reason="internal"):
    """An exception that its code does not expect."""


class TimedOutError(SourceError, reason="timeout"):
    """There was no answer, or not all of it, within a deadline."""


class BadUrlError(SourceError, reason="bad_url"):
    """What was set is no address, or one that is never requested."""


class CredentialsError(SourceError, reason="credentials"):
    """A token or password cannot be used; nothing was sent."""


class NotConnectedError(SourceError):
    """There was no connection, so nothing was sent."""


class UnreachableError(NotConnectedError, reason="unreachable"):
    """There is no way to the address."""


class RefusedConnectionError(NotConnectedError, reason="refused"):
    """Nobody listens at the address."""


class DnsError(NotConnectedError, reason="dns"):
    """The name was not resolved."""


class TlsError(NotConnectedError, reason="tls"):
    """The handshake failed, or a certificate cannot be used."""


class BrokenConnectionError(SourceError, reason="connection"):
    """The connection ended before the answer was complete."""


class TooLargeError(SourceError, reason="too_large"):
    """There is more than is read."""


class TruncatedError(SourceError, reason="truncated"):
    """The answer is cut short."""


class GarbageError(SourceError, reason="garbage"):
    """The answer is not of the kind that was requested."""


class NotMetricsError(SourceError, reason="not_metrics"):
    """The page has none of the metrics that are read."""


class MissingError(SourceError, reason="missing"):
    """A file, directory or socket is not there."""


class UnreadableError(SourceError, reason="io"):
    """The system cannot read a file or a connection."""
