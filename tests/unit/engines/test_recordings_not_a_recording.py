"""A file of the wrong kind is one sentence that says what it is not, in every command that takes a recording."""

import gzip
import json
import lzma
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvpressure.cli import installed, main

pytestmark = pytest.mark.recorded

PAGE = "# HELP node_load1 1m load average.\n# TYPE node_load1 gauge\nnode_load1 1.5\n"
DUMP = json.dumps([{"vendor": "nvidia", "error": "", "gpus": []}], indent=1)
ELSE = {
    "empty.jsonl": (b"", "it is empty"),
    "blank.jsonl": (b"\n\n", "it is empty"),
    "gpus.json": (DUMP.encode(), "it is what `record --gpus` alone writes"),
    "page.html": (b"\n<!DOCTYPE html><html>", "it is HTML or XML"),
    "page.txt": (PAGE.encode(), "it is one metrics page"),
    "plain.jsonl.gz": (b'{"t": 1}\n', "its name ends in .gz, and it is not gzip"),
    "plain.jsonl.xz": (b'{"t": 1}\n', "its name ends in .xz, and it is not xz"),
    "packed.jsonl": (gzip.compress(b"{}\n"), "it is gzip; let its name end in .jsonl.gz"),
    "packed2.jsonl": (lzma.compress(b"{}\n"), "it is xz; let its name end in .jsonl.xz"),
    "picture.png": (b"\x89PNG\r\n\x1a\n\x00\x00\x00", "it is not text"),
    "prose.md": (b"# A title\n\nwords\n" * 40, "none of its lines can be read"),
    "others.jsonl": ((json.dumps({"t": 1.0, "page": PAGE}) + "\n").encode() * 40, "none of its lines can be read"),
    "cut.jsonl.gz": (gzip.compress(b"{}\n" * 99)[:12], "cannot be read"),
}
COMMANDS = {"replay": ["replay", "{}"], "triage": ["triage", "--trace", "{}"], "whatif": ["whatif", "--trace", "{}"]}


@pytest.mark.parametrize("name", ELSE)
@pytest.mark.parametrize("command", [name for name in COMMANDS if name in installed()])
def test_a_file_of_another_kind_is_one_error_that_says_what_it_is(command: str, name: str, tmp_path: Path) -> None:
    data, said = ELSE[name]
    path = tmp_path / name
    path.write_bytes(data)
    answer = CliRunner().invoke(main, [word.format(path) for word in COMMANDS[command]])
    assert (answer.exit_code, isinstance(answer.exception, SystemExit)) == (2, True)
    told = " ".join(answer.output.split())
    assert f"{path.name} is not a recording of `kvpressure record`: " in told
    assert said in told
    assert told.count(path.name) <= 3  # its name, the engine's, and the first line that could not be read
