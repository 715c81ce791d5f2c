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

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence)
        self.sentence = sentence

    def saying(self, sentence: str) -> Self:
        """Return an error of the same type with another sentence."""
        said = type(self).__new__(type(self), sentence)
        vars(said).update(vars(self) | {"sentence": sentence})
        return said


class InternalError(SourceError):
    """An exception that its code does not expect."""

    reason = "internal"


class TimedOutError(SourceError):
    """There was no answer, or not all of it, within a deadline."""

    reason = "timeout"


class BadUrlError(SourceError):
    """What was set is no address, or one that is never requested."""

    reason = "bad_url"


class CredentialsError(SourceError):
    """A token or password cannot be used; nothing was sent."""

    reason = "credentials"


class NotConnectedError(SourceError):
    """There was no connection, so nothing was sent."""


class UnreachableError(NotConnectedError):
    """There is no way to the address."""

    reason = "unreachable"


class RefusedConnectionError(NotConnectedError):
    """Nobody listens at the address."""

    reason = "refused"


class DnsError(NotConnectedError):
    """The name was not resolved."""

    reason = "dns"


class TlsError(NotConnectedError):
    """The handshake failed, or a certificate cannot be used."""

    reason = "tls"


class BrokenConnectionError(SourceError):
    """The connection ended before the answer was complete."""

    reason = "connection"


class TooLargeError(SourceError):
    """There is more than is read."""

    reason = "too_large"


class TruncatedError(SourceError):
    """The answer is cut short."""

    reason = "truncated"


class GarbageError(SourceError):
    """The answer is not of the kind that was requested."""

    reason = "garbage"


class NotMetricsError(SourceError):
    """The page has none of the metrics that are read."""

    reason = "not_metrics"


class MissingError(SourceError):
    """A file, directory or socket is not there."""

    reason = "missing"


class UnreadableError(SourceError):
    """The system cannot read a file or a connection."""

    reason = "io"
