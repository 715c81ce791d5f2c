"""Numbers and label sets as prometheus_client writes them."""

from __future__ import annotations


def number(value: float) -> str:
    """A float as prometheus_client writes it (`floatToGoString`): repr, with an exponent from 10^6 on."""
    text = repr(float(value))
    if text == "inf":
        return "+Inf"
    dot = text.find(".")
    if value > 0 and dot > 6:
        mantissa = f"{text[0]}.{text[1:dot]}{text[dot + 1 :]}".rstrip("0.")
        return f"{mantissa}e+0{dot - 1}"
    return text


def braces(*labels: str) -> str:
    """The label set of a sample, names in order as prometheus_client sorts them; nothing when there are none."""
    present = sorted(label for label in labels if label)
    return "{" + ",".join(present) + "}" if present else ""
