"""Lists and watches are cut as a JSON reader would read them, and hostile ones cost next to nothing."""

import contextlib
import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpressure.kubernetes.objects.wire import MAX_OBJECT_BYTES, MAX_VALUES, read_event, read_object, read_page
from tests.stubs.kube_api import watch_line

TEXT = st.text(alphabet=st.sampled_from('ab"\\\\[]{},:\\n é😀'), max_size=8)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4), max_leaves=30
)
OBJECTS = st.dictionaries(TEXT, VALUES, max_size=5)
STYLES = st.sampled_from([{}, {"indent": 1}, {"separators": (",", ":")}, {"ensure_ascii": False}])


def page(items: Any, **fields: Any) -> bytes:
    return json.dumps({"kind": "PodList", "metadata": {"resourceVersion": "7"}, "items": items} | fields).encode()


@given(st.lists(OBJECTS | SCALARS, max_size=6), STYLES, st.permutations(["kind", "metadata", "items", "more"]))
def test_a_list_is_cut_into_what_is_in_it(items: list[Any], style: dict[str, Any], order: list[str]) -> None:
    whole = {"kind": "PodList", "metadata": {"resourceVersion": "7", "continue": "x"}, "items": items, "more": [items]}
    found = read_page(json.dumps({key: whole[key] for key in order}, **style).encode())
    assert (found.version, found.next_page) == ("7", "x")
    assert list(found.items) == [item if isinstance(item, dict) else None for item in items]


@given(st.binary(max_size=40) | VALUES.map(lambda value: json.dumps(value).encode()), st.integers(0, 60))
def test_whatever_comes_is_a_page_or_a_value_error(text: bytes, end: int) -> None:
    for given_text in (text, page([{"a": ["b", {}]}])[:end] + text):
        with contextlib.suppress(ValueError):
            list(read_page(given_text).items)
        with contextlib.suppress(ValueError):
            read_event(given_text)
        assert read_object(given_text) is None or isinstance(json.loads(given_text), dict)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"null",
        page([])[:-1],
        page([]) + b"x",
        page("x"),
        page({}),
        page([], kind="Status"),
        page([], kind=None),
        page([], metadata=None),
        page([], metadata={"resourceVersion": 7}),
        page([], metadata={"continue": None}),
        page([]).replace(b'"kind"', b"kind"),
        page([]).replace(b":", b"="),
        b'{"kind":"PodList","metadata":{},"items":[{},]}',
        b'{"kind":"PodList","metadata":{},"items":[{} {}]}',
        b'{"kind":"PodList","metadata":{},,"items":[]}',
        b'{"kind":"PodList","metadata":{},"items":' + b"[" * 100_000,
    ],
)
def test_what_is_no_list_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_page(text)


def test_an_item_that_is_none_costs_no_other() -> None:
    items = b'[{"a":1},{"a":1e400},"x",{"b":"\xff"},{"c":[' + b"1," * 5 + b'1]},{"d":"\\ud83d\\ude00"}]'
    found = list(read_page(page([]).replace(b"[]", items)).items)
    assert found == [{"a": 1}, None, None, None, {"c": [1] * 6}, {"d": "😀"}]


@pytest.mark.parametrize("item", [b'{"a":NaN}', b'{"a":1e}', b'{"a":"\\ud800"}', b'{"c":(}', b"["])
def test_a_page_with_something_that_is_no_json_is_refused(item: bytes) -> None:
    with pytest.raises(ValueError, match=r"JSON|truncated"):
        read_page(page([]).replace(b"[]", b'[{"a":1},' + item + b"]"))


def test_no_items_are_an_empty_list() -> None:
    assert list(read_page(page(None)).items) == []


def big(**meta: Any) -> dict[str, Any]:
    return {"metadata": {"name": "a", "labels": {"b": "c"}} | meta, "spec": [[]] * (MAX_VALUES + 1)}


@pytest.mark.parametrize("order", [["type", "object"], ["object", "type"]])
def test_of_an_event_of_too_many_values_the_name_is_known(order: list[str]) -> None:
    event = {"type": "ADDED", "object": big(resourceVersion="7", uid="u" * 2000, namespace={"x": 1})}
    line = json.dumps({key: event[key] for key in order}).encode()
    assert read_event(line) == ("ADDED", {"metadata": {"name": "a", "resourceVersion": "7", "namespace": {"x": 1}}})
    assert read_object(json.dumps(event["object"]).encode()) == read_event(line)[1]


@pytest.mark.parametrize("rest", [b"", b'"object":{}', b'"type":"ADDED"', b'"type":7,"object":{}'])
def test_a_line_that_is_no_event_is_refused_however_long(rest: bytes) -> None:
    more = b'"more":[' + b"[]," * MAX_VALUES + b"[]]"
    for line in (b"{" + rest + b"}", b"{" + b",".join(filter(None, [more, rest])) + b"}"):
        with pytest.raises(ValueError, match="no event"):
            read_event(line)


@pytest.mark.fault(
    "a list or an event of megabytes that would take a hundred times the memory as Python objects",
    "it is split into objects first, and objects that are too large are never created",
)
def test_hostile_pages_take_no_more_memory_than_their_text() -> None:
    bombs = [b'{"metadata":{"name":"b"},"spec":[' + b"[]," * 340_000 + b"[]]}"] * 4
    text = page([]).replace(b"[]", b"[" + b",".join(bombs) + b"]")
    assert all(len(bomb) < MAX_OBJECT_BYTES for bomb in bombs)
    tracemalloc.start()
    try:
        assert list(read_page(text).items) == [{"metadata": {"name": "b"}}] * 4
        assert read_event(watch_line("ADDED", {}).replace(b"{}", bombs[0]))[1] == {"metadata": {"name": "b"}}
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
