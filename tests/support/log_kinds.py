"""The kind of one line of a log."""

from kvpressure.sources.logs.classify import locate


def classify(text: str) -> str | None:
    """One line (without colours) to a kind of `environment.LOG_KINDS`, None for a line that tells nothing.

    A line that matches several kinds is of the first in the order above.
    """
    found = locate(text)
    return found[0] if found else None
