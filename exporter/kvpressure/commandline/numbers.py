"""Numbers as servers' command lines read them. None stands for what they would refuse, and for "choose yourself"."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

# Python's int() takes more (underscores between digits, a sign); eighteen digits are more than any limit has.
_WHOLE: Final = re.compile(r"\+?([0-9](_?[0-9]){0,17})")
_SHORT: Final = re.compile(r"([0-9]{1,15})(\.[0-9]{1,15})?([kKmMgGtT])")
_SHARE: Final = re.compile(r"\+?([0-9]{1,20}(\.[0-9]{0,40})?|\.[0-9]{1,40})([eE][-+]?[0-9]{1,3})?")
_LEAST_SHARE: Final = 0.001
_POWERS: Final = {"k": 1, "m": 2, "g": 3, "t": 4}


def whole(text: str) -> float | None:
    """Return a positive integer without suffix, as counts are given, else None."""
    match = _WHOLE.fullmatch(text.strip())
    value = float(int(match[1])) if match else 0.0
    return value if value >= 1 else None


def human(text: str) -> float | None:
    """Return a positive integer with an optional suffix: `32k` is 32,000 and `32K` is 32,768; `1.5k` is 1,500.

    A fraction with a capital suffix is refused; words such as `auto`, and -1, are None here.
    """
    match = _SHORT.fullmatch(text.strip())
    if match is None:
        return whole(text)
    number, fraction, suffix = match.groups()
    if suffix.isupper():
        value = 0.0 if fraction else float(int(number) * 1024 ** _POWERS[suffix.lower()])
    else:
        value = float(int(float(number + (fraction or "")) * 1000 ** _POWERS[suffix]))
    return value if value >= 1 else None


def fraction(text: str) -> float | None:
    """Return a ratio of 0 or more and less than 1, else None."""
    match = _SHARE.fullmatch(text.strip())
    value = float(match[0]) if match else 1.0
    return value if 0 <= value < 1 else None


def share(text: str) -> float | None:
    """Return a ratio from 0.001 to 1, as shares of memory are given, else None: with less no server starts."""
    match = _SHARE.fullmatch(text.strip())
    if match is None:
        return None
    value = float(match[0])  # not of `text`: float() knows fewer blanks than strip()
    return value if _LEAST_SHARE <= value <= 1 else None


TAKES: Final[Mapping[Callable[[str], float | None], str]] = {
    whole: "a whole number of 1 or more",
    human: "a whole number of 1 or more, or a short one such as 32k or 1.5k",
    fraction: "a ratio of 0 or more and less than 1",
    share: "a ratio above 0 and at most 1",
}
"""What each of these takes, for a sentence."""
