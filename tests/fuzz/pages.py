"""Grammar of /metrics pages, for the targets that read them."""

import math
from random import Random

NAMES = (
    b"a",
    b"ab",
    b"a_total",
    b"a:b",
    b"abc_bucket",
    b"abc_sum",
    b"other",
    b"otherwise",
    b"vllm:num_requests_running",
)
WANTED = frozenset(NAMES) - {b"other", b"otherwise"}
NUMBERS = (
    *(
        b"0",
        b"1",
        b"-0",
        b"1.0",
        b"007",
        b".5",
        b"5.",
        b"1e-07",
        b"1.5E+3",
        b"+7",
        b"NaN",
        b"nan",
        b"+Inf",
        b"-Inf",
        b"Inf",
    ),
    *(
        b"1e999",
        b"1e400",
        b"-1e-400",
        b"1_0",
        b"0x10",
        b"infinity",
        b"nan(1)",
        b"1e",
        b"\xd9\xa3",
        b"9" * 400,
        b"5e-324",
    ),
)
_LABELS = (b"le", b"x", b"y", b"engine", b"model_name", b"pid")
_VALUES = (
    *(
        b"",
        b"0",
        b"0.5",
        b"+Inf",
        b"a b",
        b"}",
        b"{",
        b"#",
        b" # {",
        b",",
        b"=",
        b'\\"',
        b"\\\\",
        b"\\n",
        b"\\t",
        b"\\",
    ),
    *("\u00e9\u2028\U0001f600".encode(), b"\xff", b"\x00", b"\x85", b"\r", b"\x0b", b"x" * 100, b'\\\\"', b"\\\\n"),
)
_SPACES = (b"", b"", b"", b" ", b"  ", b"\t", b"\x0b", b"\xc2\xa0")


def line(random: Random) -> bytes:
    """A sample or a comment, mostly well-formed."""
    choice = random.getrandbits(4)
    if choice == 0:
        return random.choice(
            (b"", b"  ", b"#", b"# EOF", b"# HELP a", b"# HELP a what a 1", b"# TYPE abc histogram", b"# x")
        )
    labels = _labels(random) if choice < 10 else b""
    space = b" " if random.getrandbits(3) else random.choice(_SPACES)
    tail = (
        b""
        if random.getrandbits(2)
        else random.choice((b" 1700000000000", b" -5", b' # {t="a b"} 1.0', b" # {} 1 2", b" "))
    )
    lead = b"" if random.getrandbits(3) else random.choice(_SPACES)
    number = (
        random.choice(NUMBERS)
        if random.getrandbits(1)
        else repr(random.random() * 10 ** random.randrange(-9, 15)).encode()
    )
    return lead + random.choice(NAMES) + labels + space + number + tail


def _labels(random: Random) -> bytes:
    names = random.sample(_LABELS, random.getrandbits(2))
    if names and not random.getrandbits(4):
        names.append(names[0])
    terms = [
        random.choice(_SPACES) + name + random.choice(_SPACES) + b'="' + value(random) + b'"' + random.choice(_SPACES)
        for name in names
    ]
    return random.choice(_SPACES) + b"{" + b",".join(terms) + random.choice((b"", b"", b",")) + b"}"


def value(random: Random) -> bytes:
    """The value of a label, as it is written."""
    return b"".join(random.choice(_VALUES) for _ in range(random.getrandbits(1) + 1))


def page(random: Random) -> bytes:
    """Some lines, in one or several families."""
    lines: list[bytes] = []
    for _ in range(random.getrandbits(2)):
        name = random.choice(NAMES)
        lines += [b"# HELP " + name + b" help", b"# TYPE " + name + b" gauge"][: random.getrandbits(2)]
        lines += [line(random) for _ in range(random.getrandbits(3))]
    end = b"\r\n" if random.getrandbits(4) == 0 else b"\n"
    return end.join(lines) + (end if random.getrandbits(3) else b"")


def same_value(left: float, right: float) -> bool:
    """Equal, NaN being equal to NaN."""
    return left == right or (math.isnan(left) and math.isnan(right))
