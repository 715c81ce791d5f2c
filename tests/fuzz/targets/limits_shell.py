"""Shell scripts and `$(VAR)`: read within the budget, and as shlex reads them where nothing is to be expanded.

An input is a script, then lines of variables, with a control character between.
"""

import re
import shlex
from random import Random

from kvpressure.commandline.options import unresolved
from kvpressure.commandline.words import STEP, Budget, BudgetExceededError, Script, Words, expand
from tests.fuzz import starts
from tests.fuzz.target import Target, expect

_BETWEEN = "\x1f"
_PLAIN_WORD = re.compile(r"[^\s\x1c-\x1f\x85\xa0\x00]+")
_WORK = 20_000


def check(data: bytes) -> tuple[object, ...]:
    """What is made is never more than was paid for; words that were quoted come out again."""
    script, _, rest = data.decode("utf-8", "replace").partition(_BETWEEN)
    env = dict(line.partition("=")[::2] for line in rest.split("\n"))
    budget = Budget(_WORK)
    found: list[Words] = []
    spent = False
    try:
        found.extend(one.words for one in Script(script, env, budget, ("zero", "one", "t w o")).commands())
    except BudgetExceededError:
        spent = True
    made = sum(len(word) + STEP for words in found for word in words)
    expect(made <= 2 * _WORK, "more is made of a script than was paid for", made)
    expect(spent == (budget.left < 0), "the budget is spent and nobody says so, or the reverse")
    expanded = _expanded(script, env)
    if env == {"": ""} and not spent:
        _against_shlex(script)
    return (spent, len(found).bit_length(), any(unresolved(word) for words in found for word in words), expanded)


def _expanded(text: str, env: dict[str, str]) -> bool:
    budget = Budget(_WORK)
    try:
        made = expand(text, env, budget)
    except BudgetExceededError:
        return False
    expect(len(made) <= _WORK, "more is expanded than was paid for", len(made))
    expect(expand("$$(A)", {"A": "x"}, Budget()) == "$(A)" and ("$" in text or made == text), "nothing to expand", made)
    return made != text


def _against_shlex(script: str) -> None:
    """The script's own words, quoted again, are one command of those words."""
    words = ["run", *script.split()[:20]]
    if not all(map(_PLAIN_WORD.fullmatch, words)):
        return
    found = [one.words for one in Script(shlex.join(words), {}, Budget(1 << 20)).commands()]
    expect(found == [tuple(words)], "quoted words are not read as they are", (words, found))


def make(random: Random) -> bytes:
    """A script, with or without variables."""
    env = starts.environment(random) if random.getrandbits(1) else {}
    return (starts.script(random) + _BETWEEN * bool(env) + "\n".join(f"{k}={v}" for k, v in env.items())).encode()


TARGET = Target(
    about="shell scripts of start commands, and Kubernetes' $(VAR), within a budget",
    make=make,
    check=check,
    words=(*(piece.encode() for piece in starts.PIECES), _BETWEEN.encode(), b"\x1fA=$A$A", b"A=xxxxxxxx\n"),
    longest_bytes=1000,
)
