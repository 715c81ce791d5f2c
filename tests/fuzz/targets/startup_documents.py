"""Documents of any format to engines: never an error, never slow, never more memory than a few megabytes.

An input is the name of a file, a line feed, and its text.
"""

import time
from random import Random

from kvpressure_planner.audit import find_engines, read
from kvpressure_planner.audit.manifests import WORK
from tests.fuzz import starts
from tests.fuzz.target import Target, expect
from tests.fuzz.yamls import anything, written

_NAMES = ("a.yaml", "a.json", "a.service", "a.tf", "a.nomad", "a.sh", "a.container", "stdin")
_KEYS = ("image", "command", "args", "env", "run", "script", "services", "containers", "spec", "resources", "vars")
_HCL = (
    *('job "v" {\n', 'task "t" {\n config {\n', 'image = "vllm/vllm-openai"\n', "}\n"),
    'args = ["--max-num-seqs", "8"]\n',
)
_UNIT = (
    *("[Service]\n", "Environment=A=8 B=9\n", "[Container]\n", "Image=x\\\n"),
    "ExecStart=vllm serve m --max-num-seqs $A\n",
)
_MOST_SECONDS = 5.0


def check(data: bytes) -> tuple[object, ...]:
    """What is found has a place in the file, and its budget was kept."""
    name, _, text = data.decode("utf-8", "replace").partition("\n")
    begun = time.thread_time()
    given = read(text, name if name in _NAMES else "a.yaml")
    engines, problems = find_engines(given)
    expect(time.thread_time() - begun < _MOST_SECONDS, "reading takes seconds", len(data))
    lines = text.count("\n") + 1
    for engine in engines:
        line = engine.place.line
        expect(line is None or 1 <= line <= lines + 1, "a line that the file does not have", line)
        expect(bool(engine.title) and len(engine.reading.notes) < 20, "an engine without a name", engine.title)
    expect(all(item.source.budget.left > -WORK for item in given.items), "more is read than the budget allows")
    known = sum(len(engine.reading.limits) for engine in engines)
    return (name, min(len(engines), 4), bool(problems or given.problems), min(known, 6))


def make(random: Random) -> bytes:
    """A document, of one of the formats."""
    kind = random.randrange(5)
    if kind == 0:
        text, name = starts.script(random), "a.sh"
    elif kind == 1:
        text, name = "".join(random.choices(_HCL, k=random.randrange(2, 12))), random.choice(("a.tf", "a.nomad"))
    elif kind == 2:
        text, name = "".join(random.choices(_UNIT, k=random.randrange(1, 9))), "a.service"
    else:
        container = starts.container(random)
        around = {random.choice(_KEYS): anything(random), random.choice(_KEYS): [container]}
        text, name = written(random, {**container, **around} if kind == 3 else around).decode(), "a.yaml"
    return f"{name}\n{text}".encode()


TARGET = Target(
    about="documents that may start engines, of any format",
    make=make,
    check=check,
    words=(
        *(piece.encode() for piece in starts.PIECES),
        *(f"{key}: ".encode() for key in _KEYS),
        *(piece.encode() for piece in (*_HCL, *_UNIT)),
        b"vllm serve m --max-num-seqs 8",
        b"<<EOF\n",
        b"${A:-8}",
        b"{{ a | default(8) }}",
    ),
    longest_bytes=3000,
)
