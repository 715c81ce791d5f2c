"""A text that does to a terminal what foreign texts can, and what of a text must not be printed."""

import unicodedata

# Writes to the clipboard, clears the screen, a C1 control, turns text around, is hidden, and is drawn as nothing.
HOSTILE = "\x1b]52;c;ZXZpbA==\x07\x1b[2J\x9b31m\u202egnp.\u2066\u200b\u00ad\u2028\u3164\ufe0fevil\x7f"
NOT_SHOWN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
BLANK = "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180f\u2800\u3164\ufe0f\uffa0\U000e0100"


def hidden(text: str) -> set[str]:
    """What of a text is not drawn as itself, line ends aside."""
    return {c for c in text if c != "\n" and (unicodedata.category(c) in NOT_SHOWN or c in BLANK)}
