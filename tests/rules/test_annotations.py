"""What keeps alert texts readable, in Prometheus as in a pager: a bar each, for every alert of both flavours."""

import re
from typing import Any

import pytest

from kvpressure.bundle import Options, load_rules
from kvpressure.bundle.options import EXPORTER, VLLM_ONLY
from kvpressure.config.thresholds import load_thresholds
from kvpressure.exposition.families import MAX_STEP_TEXT, STEP_TEXTS
from kvpressure.model.target_status import STATUSES
from tests.support.rules import rendered

EVERY = list(rendered())
MAX_SOURCE, MAX_RENDERED, MAX_QUERIES = 600, 250, 2
WORDS = re.compile(r"\bhurt\b|\bcalm\b|8 bits|to drain|cap on sequences")


def annotated() -> list[tuple[str, str, str]]:
    """Alert, annotation and its source, of both flavours."""
    found = []
    for flavour in (EXPORTER, VLLM_ONLY):
        options = Options(load_thresholds(), flavour=flavour, selector=flavour.selector, all_alerts=True)
        for file in load_rules(options):
            for alert in file.alerts:
                texts: dict[str, Any] = dict(alert.rule["annotations"])
                found += [(alert.name, key, str(text)) for key, text in texts.items() if key != "runbook_url"]
    return found


ALL = annotated()
each = pytest.mark.parametrize(("name", "key", "text"), ALL, ids=lambda value: value if len(value) < 40 else "")


@each
def test_a_reviewer_can_read_the_source(name: str, key: str, text: str) -> None:
    assert len(text) <= MAX_SOURCE, f"{name} {key}: {len(text)} characters"
    assert text.count("query (") <= MAX_QUERIES, f"{name} {key}"
    assert "else if" not in text or text.count("else if") <= 1, f"{name} {key}"


@each
def test_no_link_is_built_of_an_instance(name: str, key: str, text: str) -> None:
    assert key == "description" or "http://{{" not in text, f"{name} {key}"


@pytest.mark.parametrize(("name", "told"), [(name, told) for name, _, told in EVERY], ids=lambda value: str(value)[:30])
def test_what_is_read_before_the_command_is_short(name: str, told: dict[str, str]) -> None:
    said = told["summary"] + told["description"].partition("\nRun: ")[0]
    assert len(said) <= MAX_RENDERED, f"{name}: {len(said)} characters: {said}"
    assert not WORDS.search(said), f"{name}: {said}"


def without_queries(text: str) -> str:
    """A template as a vendor renders it who has no `query`: as if none had a result."""
    block = re.compile(
        r"{{ (?:range|with) (?:query \([^)]*\)[^}]*|\$engines) }}((?:(?!{{ (?:range|with|if) ).)*?){{ end }}", re.DOTALL
    )
    branch = re.compile(r"{{ if [^}]*}}((?:(?!{{ (?:range|with|if) ).)*?){{ end }}", re.DOTALL)
    value = re.compile(r"{{ with \$(?:l|labels)\.[^}]*}}((?:(?!{{ (?:range|with|if) ).)*?){{ end }}", re.DOTALL)
    text = re.sub(r"`[^`]*`", "``", text)
    while True:
        new = re.sub(r"{{ \$\w+ := [^}]*}}", "", text)
        new = branch.sub(lambda found: found[1].partition("{{ else")[0], new, count=1)
        new = value.sub(lambda found: found[1].partition("{{ else")[0], new, count=1)
        new = block.sub(
            lambda found: found[1].rpartition("{{ else }}")[2] if "{{ else }}" in found[1] else "", new, count=1
        )
        if new == text:
            return re.sub(r"{{[^}]*}}", "X", text)
        text = new


@each
def test_without_queries_it_is_still_a_sentence(name: str, key: str, text: str) -> None:
    if key not in {"summary", "description"}:
        return
    said = without_queries(text)
    assert "{{" not in said, said
    assert not re.search(r"  |: ?\.|[:;,] ?$|\(\)|First: \.|Run: *$|,\.|: ,", said), f"{name} {key}: {said}"
    assert key == "summary" or re.search(r"[.]\nRun: \S+ \S+", said), said


def test_the_words_of_steps_and_statuses_are_short_and_without_figures() -> None:
    assert all(len(text) <= MAX_STEP_TEXT for text in STEP_TEXTS.values())
    assert not [text for text in STEP_TEXTS.values() if re.search(r"\d{2}", text)]
    assert not [status for status in STATUSES.values() if re.search(r"\d", status.text) and "http" not in status.word]
