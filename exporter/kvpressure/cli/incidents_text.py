"""A look back as text: the incidents one after the other, and what they come to."""

from __future__ import annotations

from kvpressure.cli.say import say
from kvpressure.lookback.document import Json
from kvpressure.lookback.words import lines, summary


def told(document: Json) -> None:
    """Print it."""
    say(*summary(document))
    for incident in document["incidents"]:
        say("", *lines(incident))
