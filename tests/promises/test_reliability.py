import json
import re
from collections import Counter

from tests.fuzz import findings, registry, results, state
from tests.support.reliability import (
    BEGIN,
    END,
    FUZZING,
    FUZZING_END,
    PAGE,
    ROOT,
    Outcomes,
    fuzzing,
    put,
    rows,
    table,
)


def test_the_page_has_a_row_for_every_marked_test_and_no_other():
    shown = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    without_results = re.compile(r" \| [^|]* \|$", re.MULTILINE)
    assert without_results.sub("", shown) == without_results.sub("", table({}))


def test_every_promise_was_kept_when_the_page_was_written():
    results = re.findall(r" \| ([^|]*) \|$", PAGE.read_text().partition(BEGIN)[2].partition(END)[0], re.MULTILINE)[1:]
    assert {re.sub(r"^\d+ ", "", result) for result in results} - {"---", "result"} == {"passed"}


def test_a_test_with_a_case_that_fails_shows_it():
    row = rows()[0]
    assert f"({'../../' + row.test.partition('::')[0]}) | failed, 2 passed |" in table(
        {row.test: Counter({"passed": 2, "failed": 1})}
    )


def test_marks_are_read_where_they_stand():
    assert all((ROOT / row.test.partition("::")[0]).exists() for row in rows())
    assert all("|" not in row.what + row.promise and row.what[0].islower() for row in rows())


def test_an_outcome_is_counted_once_for_each_case():
    class Report:
        def __init__(self, when: str, outcome: str) -> None:
            self.nodeid, self.when, self.outcome = "tests/a.py::test_b[c]", when, outcome

    outcomes = Outcomes()
    for when, outcome in (("setup", "passed"), ("call", "passed"), ("teardown", "passed"), ("setup", "failed")):
        outcomes.pytest_runtest_logreport(Report(when, outcome))  # type: ignore[arg-type]
    assert outcomes.ended == {"tests/a.py::test_b": Counter({"passed": 1, "failed": 1})}


def test_the_page_says_what_fuzzing_came_to():
    shown = PAGE.read_text().partition(FUZZING)[2].partition(FUZZING_END)[0]
    assert shown == fuzzing(results.load())


def test_every_target_was_fuzzed_and_what_was_found_has_its_regression():
    published = results.load()
    assert list(published["targets"]) == list(registry.names())
    assert min(one["inputs"] for one in published["targets"].values()) >= 100_000
    assert sum(one["inputs"] for one in published["targets"].values()) >= 10_000_000
    told = {(one["target"], name) for one in published["findings"] for name in one["regressions"]}
    assert told == {(path.parent.name, path.name) for path in findings.REGRESSIONS.glob("*/*.bin")}


def test_a_section_is_put_between_its_marks_or_at_the_end():
    assert put("a\n<b>old</b>c", "<b>", "</b>", "new") == "a\n<b>new</b>c"
    assert put("a\n", "<b>", "</b>", "new") == "a\n<b>new</b>"


def test_every_run_adds_to_the_totals_and_none_is_counted_twice(tmp_path):
    folder, written = tmp_path / "fuzz", tmp_path / "results.json"
    for seed, inputs, total in ((1, 100, 100), (1, 130, 130), (7, 150, 150)):
        before = state.load("numbers", seed, folder)
        before.inputs, before.slowest_seconds = inputs, 1.0 / inputs
        state.save("numbers", before, folder)
        results.publish(folder, written)
        results.publish(folder, written)
        assert json.loads(written.read_text())["targets"]["numbers"]["inputs"] == total
    other_checkout = tmp_path / "night"
    state.save("numbers", state.State(8, inputs=50), other_checkout)
    results.publish(other_checkout, written)
    one = json.loads(written.read_text())["targets"]["numbers"]
    assert (one["inputs"], one["seeds"], one["slowest_milliseconds"]) == (200, [1, 7, 8], 10.0)
