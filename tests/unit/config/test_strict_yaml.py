import math
import re
import tracemalloc
from contextlib import suppress

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kvpressure.config.strict_yaml import MAX_DEPTH, ConfigError, Problem, TooLargeError, dotted, load, scalar
from tests.support.bombs import LAUGHS

pytestmark = pytest.mark.exhaustive


def problems(text: str, **limits: int) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(text, "f.yaml", **limits)
    return [str(problem) for problem in caught.value.problems]


def test_every_key_and_item_has_its_line() -> None:
    document = load("a:\n  b: 1\n  c:\n    - x\n    -\n      d: 2\n", "f.yaml")
    assert document.data == {"a": {"b": 1, "c": ["x", {"d": 2}]}}
    assert document.line(("a", "b")) == 2
    assert document.line(("a", "c", 0)) == 4
    assert document.line(("a", "c", 1, "d")) == 6


def test_what_is_not_written_has_the_line_of_what_it_belongs_to() -> None:
    document = load("a: 1\nb:\n  - {c: 1}\n", "f.yaml")
    assert document.line(("b", 0, "missing", "deeper")) == 3
    assert document.line(("missing",)) == 1


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1:30", "1:30"),
        ("10405:20", "10405:20"),
        ("yes", "yes"),
        ("off", "off"),
        ("2024-01-01", "2024-01-01"),
        ("010", 10),
        ("0x10", 16),
        ("1e-3", 0.001),
        ("-.5", -0.5),
        ("1_000", "1_000"),
        ("true", True),
        ("True", "True"),
        ("~", None),
        (".inf", math.inf),
        ("-.inf", -math.inf),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_plain_scalars_follow_the_core_schema_and_quoted_ones_are_strings(text: str, value: object) -> None:
    assert load(f"k: {text}", "f").data == {"k": value}
    assert load(f"k: '{text}'", "f").data == {"k": text}


def test_a_plain_nan_is_a_number() -> None:
    assert math.isnan(load("k: .nan", "f").data["k"])


@pytest.mark.parametrize("text", ["", "# only a comment\n", "---\n"])
def test_an_empty_file_holds_nothing(text: str) -> None:
    assert load(text, "f").data is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\na: 2\nb: 1\nb: 2\n", "f.yaml:2: a: duplicate key, first given in line 1"),
        ("a:\n  - x: 1\n    x: 1\n", "f.yaml:3: a[0].x: duplicate key, first given in line 2"),
        ("a: &x {b: 1}\nc:\n  <<: *x\n", "f.yaml:3: c: keys must be plain words; merge keys (<<) are not supported"),
        ("? [a]\n: 1\n", "f.yaml:1: keys must be plain words; merge keys (<<) are not supported"),
        ("a: 1\nb: !!python/name:os.system x\n", "f.yaml:2: tag 'tag:yaml.org,2002:python/name:os.system'"),
        ("a: !secret x\n", "f.yaml:1: tag '!secret' is not supported: write plain values"),
        ("a: 1\n---\nb: 1\n", "f.yaml:2: is not YAML: but found another document"),
        ("a: *nothing\n", "f.yaml:1: is not YAML: found undefined alias"),
        ("a:\n\t- x\n", "f.yaml:2: is not YAML: found character that cannot start any token; indent with spaces, "),
        ("a: \x00\n", "f.yaml: is not YAML: "),
        ("a: &x [*x]\n", "f.yaml:1: an alias contains itself"),
    ],
)
def test_what_is_not_plain_yaml_is_a_problem_with_its_line(text: str, message: str) -> None:
    assert problems(text)[0].startswith(message)


def test_merge_keys_are_followed_where_that_is_asked_for() -> None:
    text = "x: &x {a: 1, b: 1}\ny: &y {<<: *x, c: 3}\nz:\n  <<: [*y, {d: 5, c: 0}]\n  b: 2\n"
    document = load(text, "f", merges=True)
    assert document.data["z"] == {"b": 2, "c": 3, "a": 1, "d": 5}
    assert (document.lines[("z", "b")], document.lines[("z", "c")]) == (5, 2)
    with pytest.raises(ConfigError, match="an alias contains itself"):
        load("a: &a {<<: *a}\n", "f", merges=True)


def test_deep_nesting_is_a_message_and_not_a_stack_overflow() -> None:
    assert problems("[" * 500_000) == [f"f.yaml:1: is nested deeper than {MAX_DEPTH} levels"]


REPEATED = "a: &a " + "x" * 500_000 + "\nb: [" + "*a, " * 50_000 + "*a]\n"


@pytest.mark.fault(
    "a YAML file whose aliases multiply, nest in themselves, or repeat one long text", "it is refused with its line"
)
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LAUGHS, "f.yaml:15: holds more than 100000 keys and values, aliases expanded"),
        (REPEATED, "f.yaml:2: holds more than 1048576 characters, aliases expanded"),
        ("a: &x {b: {c: *x}}\n", "f.yaml:1: an alias contains itself"),
        ("a: &a " + "[" * 20 + "]" * 20 + "\nb: " + "[" * 20 + "*a" + "]" * 20, "f.yaml:1: an alias nests too deep"),
    ],
)
def test_aliases_are_counted_as_what_they_stand_for(text: str, message: str) -> None:
    assert problems(text)[0].startswith(message)


@pytest.mark.fault("a megabyte of YAML that is hundreds of thousands of values", "it is refused within 8 MiB of memory")
@pytest.mark.parametrize("text", ["[" + "a," * 500_000 + "a]", "- a\n" * 250_000, "[" + "{a: b}," * 140_000 + "{}]"])
def test_a_flood_of_values_is_refused_before_it_takes_memory(text: str) -> None:
    tracemalloc.start()
    try:
        assert "holds more than 100000 keys and values" in problems(text)[0]
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("text", [LAUGHS, REPEATED, "a: &x [*x]\n", "x" * (1 << 20) + "x"])
def test_what_is_too_large_is_another_error_than_what_is_wrong(text: str) -> None:
    with pytest.raises(TooLargeError):
        load(text, "f")


def test_what_is_within_bounds_is_not_refused_for_its_aliases() -> None:
    load("a: &a [1, 2]\nb: [*a, *a]\n", "f", max_values=13)
    with pytest.raises(ConfigError, match="more than 12 keys and values"):
        load("a: &a [1, 2]\nb: [*a, *a]\n", "f", max_values=12)


@pytest.mark.fault(
    "a file with a hundred thousand errors, or an invalid line of a megabyte", "at most a page of error messages"
)
def test_problems_are_bounded_in_number_and_length() -> None:
    found = problems("".join(f"k{number % 2}: 1\n" for number in range(40_000)))
    assert len(found) == 101
    assert found[-1] == "f.yaml: 39898 more problems"
    (long,) = problems('a: 1\n? "' + "k" * 100_000 + '"\n: v\n')
    assert long == "f.yaml:2: a key is longer than 1024 characters"
    assert max(map(len, problems("a: !" + "x" * 100_000 + " y\n"))) < 1200


def test_a_file_that_is_too_large_is_not_parsed() -> None:
    assert problems("a: 1" * 10, max_chars=20) == ["f.yaml: is larger than 20 characters"]


def test_an_alias_used_within_reason_is_what_it_stands_for() -> None:
    assert load("a: &x {b: 1}\nc: *x\n", "f").data == {"a": {"b": 1}, "c": {"b": 1}}


def test_problems_are_in_reading_order_and_reported_once() -> None:
    first, second = Problem("f", 2, "", "x"), Problem("f", 10, "", "y")
    assert ConfigError([second, first, second]).problems == (first, second)


def test_paths_are_written_as_people_do() -> None:
    assert dotted(("engines", "targets", 0, "url")) == "engines.targets[0].url"
    assert dotted((0, "labels")) == "[0].labels"
    assert dotted(()) == ""


_TREES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**9), 10**9)
    | st.floats(allow_nan=False, width=32)
    # PyYAML writes 0E0, which is no number of YAML 1.1, without quotes.
    | st.text(max_size=8).filter(lambda text: not re.fullmatch(r"[-+]?\d+[eE][-+]?\d+", text)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abcxyz", min_size=1), inner, max_size=3),
    max_leaves=12,
)


@given(_TREES)
def test_what_pyyaml_writes_is_read_back(tree: object) -> None:
    assert load(yaml.safe_dump(tree, default_style='"' if isinstance(tree, str) else None), "f").data == tree


@given(st.text(max_size=40))
def test_any_text_is_data_or_a_problem(text: str) -> None:
    scalar(text)
    with suppress(ConfigError):
        load(text, "f")
