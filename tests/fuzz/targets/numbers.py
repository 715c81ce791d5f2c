"""The numbers of command lines against vLLM's own rules, in exact arithmetic."""

import re
from decimal import Decimal
from fractions import Fraction
from random import Random

from kvpressure.commandline.options import human, share, whole
from tests.fuzz.mutate import NUMBERS
from tests.fuzz.target import Target, expect

_SUFFIXES = ("", "", "k", "K", "m", "M", "g", "G", "t", "T", "Gi", "KiB", "e3", "e400", "E-7", "%", "\u212a", "k ")
_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4}


def make(random: Random) -> bytes:
    """Digits with whatever people put around them."""
    digits = str(random.getrandbits(random.choice((3, 8, 30, 70))))
    fraction = random.choice(("", "", f".{random.getrandbits(12)}", ".", "._5", ".5"))
    sign = random.choice(("", "", "", "+", "-", " ", "\u0663"))
    return f"{sign}{digits}{fraction}{random.choice(_SUFFIXES)}".encode()


def check(data: bytes) -> tuple[bool, ...]:
    """Each reading is None or what vLLM would have, as exactly as a float can be."""
    text = data.decode("utf-8", "replace")
    found = whole(text), human(text), share(text)
    stripped = text.strip()
    if found[0] is not None:
        expect(found[0] == float(int(stripped)) and found[0] >= 1, "whole() is not int()", text)
    if found[1] is not None:
        expect(found[1] == _human(stripped) >= 1, "human() is not vLLM's human_readable_int", (text, found[1]))
    if found[2] is not None:
        expect(Decimal(stripped) <= 1 and found[2] == float(Decimal(stripped)) > 0, "share() is not the ratio", text)
    if re.fullmatch(r"[1-9][0-9]{0,17}", stripped):
        expect(found[0] == found[1] == float(int(stripped)), "a plain whole number is not read", text)
    if re.fullmatch(r"0\.[1-9][0-9]{0,5}", stripped):
        expect(found[2] == float(stripped), "a plain ratio is not read", text)
    return tuple(one is not None for one in found)


def _human(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgGtT])", text)
    if match is None:
        return float(int(text))
    power = _POWERS[match[2].lower()]
    if match[2].isupper():
        return float(int(match[1]) * 1024**power)
    exact = Fraction(match[1]) * 1000**power
    nearest = float(int(float(match[1]) * 1000**power))
    return nearest if abs(nearest - exact) <= max(1, exact / 2**50) else float("nan")


TARGET = Target(
    about="numbers with and without suffixes, as vLLM's options take them",
    make=make,
    check=check,
    seeds=lambda: NUMBERS,
    words=tuple(suffix.encode() for suffix in _SUFFIXES if suffix),
    longest_bytes=600,
)
