"""Decision records: few, each with a status, all in the index."""

import re

from tests.support.tools import ROOT

RECORDS = ROOT / "docs/internals/decisions"
MOST_RECORDS = 40
"""More than that nobody reads; what is superseded, or says nothing that the code does not, goes."""


def test_the_index_names_every_record_with_its_title_and_status():
    rows = re.findall(r"^\| \[\d{4}\]\((.+)\) \| (.+) \| (.+) \|$", (RECORDS / "README.md").read_text(), re.MULTILINE)
    written = []
    for path in sorted(RECORDS.glob("0*.md")):
        title, _, text = path.read_text().partition("\n")
        status = re.search(r"^Status: ([^.;]+)", text, re.MULTILINE)
        assert status, f"{path.name} has no status"
        written.append((path.name, re.sub(r"^# \d{4}:? ", "", title), status[1]))
    assert rows == written


def test_there_are_few_records():
    assert len(list(RECORDS.glob("0*.md"))) <= MOST_RECORDS
