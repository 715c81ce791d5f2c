"""What every dashboard must keep: series that exist, queries that parse, words on every panel, one palette."""

import json
import math
import re
from typing import Any

import pytest
import yaml
from dashboards.__main__ import BOARDS as BOARDS_MADE
from dashboards.__main__ import VLLM_ONLY
from dashboards.board import text_of
from dashboards.looks import CODES, REQUESTS_PER_SECOND, SERIES, TIMES, TOKENS_PER_SECOND
from dashboards.variables import engine_variables

from dashboards import capacity, engine, exporter, fleet
from kvpressure.bundle.dashboards import dashboards
from kvpressure.bundle.options import VLLM_ONLY as FLAVOUR
from kvpressure.bundle.options import Options
from kvpressure.bundle.rules import BOARDS, links
from kvpressure.config.thresholds import load_thresholds
from kvpressure.diagnosis.symptoms import NAMES
from kvpressure.exposition import runbooks
from kvpressure.exposition.families import FAMILIES
from kvpressure.model.catalogue import CATALOGUE as CAUSES
from tests.dashboards.boards import LINT, UIDS, BoardQuery, filled, load, panels, queries, variables
from tests.support.colours import DEFICIENCIES, lab
from tests.support.rules import known_series, recorded, selectors

LOADED = {uid: load(uid) for uid in UIDS}
ON_VLLM = json.loads(dashboards(Options(load_thresholds(), selector="", flavour=FLAVOUR))["kvpressure-vllm-only"])
"""The board on vLLM's own series."""
ASKED = [query for board in LOADED.values() for query in queries(board)]
PANELS = [(uid, panel) for uid, board in LOADED.items() for panel in panels(board)]
EVERY_PANEL = [*PANELS, *(("kvpressure-vllm-only", panel) for panel in panels(ON_VLLM))]
PROMETHEUS_OWN = {
    "up": {"target"},
    "ALERTS": {"alertname", "alertstate", "severity", "target", "namespace", "pod", "model_name", "engine"},
    "scrape_samples_scraped": set[str](),
    "scrape_duration_seconds": set[str](),
}
ALWAYS = {"job", "instance", "cluster"}
LABELS_EXCUSED = ("job", "instance")
COLOUR = re.compile(
    r'"(#[0-9a-fA-F]{3,8}|(?:dark-|light-|semi-dark-|super-light-)?(?:red|green|yellow|orange|blue|purple))"'
)

each_query = pytest.mark.parametrize("query", ASKED, ids=str)
each_panel = pytest.mark.parametrize(
    ("uid", "panel"), EVERY_PANEL, ids=lambda it: it if isinstance(it, str) else it["title"]
)
each_board = pytest.mark.parametrize("board", LOADED.values(), ids=UIDS)
every_board = pytest.mark.parametrize("board", [*LOADED.values(), ON_VLLM], ids=lambda board: board["uid"])


def plain(text: str, board: dict[str, Any]) -> str:
    """With every variable filled in by a word."""
    names = [one["name"] for one in board["templating"]["list"]]
    return filled(text, {**dict.fromkeys(names, "x"), "__rate_interval": "1m", "__interval": "1m"})


def known() -> dict[str, set[str]]:
    """Series to labels; those of recorded series follow from their levels."""
    found = known_series() | PROMETHEUS_OWN
    for name in recorded():
        levels = {
            "workload": {"namespace", "model_name", "workload", "object"},
            "namespace_model": {"namespace", "model_name"},
            "namespace": {"namespace"},
            "cluster": set[str](),
        }
        of_engine = {"target", "namespace", "pod", "model_name", "engine"}
        found[name] = levels.get(name.split(":")[0], of_engine) | {"cluster", "cause", "kind", "quantile", "le"}
    return found


UNITS = ("short", "percentunit", "s", "bytes", "Bps")

# --- queries


@each_query
def test_every_query_parses_and_asks_for_series_and_labels_that_there_are(query: BoardQuery) -> None:
    found = selectors(plain(query.expr, LOADED[query.uid]))
    assert found
    for selector in found:
        assert selector.name in known(), f"{query}: there is no {selector.name}"
        asked = {matcher.name for matcher in selector.matchers.matchers}
        assert asked <= known()[selector.name] | ALWAYS, f"{query}: {selector}"


@each_query
def test_every_query_finds_only_the_exporters_series(query: BoardQuery) -> None:
    for selector in selectors(plain(query.expr, LOADED[query.uid])):
        matchers = {matcher.name: matcher.value for matcher in selector.matchers.matchers}
        assert selector.name in recorded() or matchers.get("job") == "kvpressure", f"{query}: {selector}"


@each_query
def test_causes_and_symptoms_that_queries_name_exist(query: BoardQuery) -> None:
    names = {"symptom": set(NAMES), "cause": {cause.value for cause in CAUSES}}
    for selector in selectors(plain(query.expr, LOADED[query.uid])):
        for matcher in selector.matchers.matchers:
            if matcher.name in names:
                assert set(matcher.value.split("|")) <= names[matcher.name], f"{query}: {selector}"


@each_query
def test_counters_are_only_read_as_rates_over_an_interval_that_grafana_chooses(query: BoardQuery) -> None:
    for name in {selector.name for selector in selectors(plain(query.expr, LOADED[query.uid]))}:
        if name.endswith("_total") or (name.endswith("_bucket") and ":" not in name):
            read = re.findall(rf"(\w+)\({name}{{[^}}]*}}\[([^\]]+)\]", query.expr)
            assert len(read) == query.expr.count(name + "{"), f"{query}: {name} is not read as a rate"
            wanted = "2m" if query.ref == "annotation" else "$__rate_interval"
            assert {interval for _, interval in read} == {wanted}, f"{query}: {read}"
            assert {how for how, _ in read} <= {"rate", "increase"}, f"{query}: {read}"


@each_query
def test_a_query_never_draws_a_line_for_each_of_ten_thousand_engines(query: BoardQuery) -> None:
    """Over time only those shown are asked for, and never all buckets, symptoms or causes of all."""
    families = {family.name: family for family in FAMILIES}
    for selector in selectors(plain(query.expr.replace("$shown", "SHOWN"), LOADED[query.uid])):
        per_engine = selector.name in families and "model_name" in families[selector.name].scope.labels
        values = {matcher.value for matcher in selector.matchers.matchers}
        if per_engine and not query.instant:
            assert "SHOWN" in values, f"{query}: {selector}"


def test_every_recorded_series_that_fleets_are_read_from_is_of_the_finest_level() -> None:
    used = {selector.name for query in ASKED for selector in selectors(plain(query.expr, LOADED[query.uid]))}
    assert {name.split(":")[0] for name in used if ":" in name} == {"namespace_model", "workload"}


def test_an_empty_query_and_an_unknown_variable_would_be_noticed() -> None:
    with pytest.raises(ValueError, match=r".+"):
        selectors("sum(")
    with pytest.raises(LookupError, match="nobody"):
        plain("up{x=~'$nobody'}", LOADED[UIDS[0]])


# --- panels


@each_panel
def test_every_panel_has_a_title_and_a_description_that_is_a_sentence(uid: str, panel: dict[str, Any]) -> None:
    assert panel["title"]
    assert panel["description"].endswith(".")
    assert len(panel["description"]) > len(panel["title"])


@each_panel
def test_every_panel_has_a_unit_legends_and_the_chosen_data_source(uid: str, panel: dict[str, Any]) -> None:
    if panel["type"] == "text":
        assert "targets" not in panel
        return
    source = {"type": "prometheus", "uid": "${datasource}"}
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["datasource"] == source
    for target in panel["targets"]:
        assert target["legendFormat"] not in ("", "__auto")
        assert target["datasource"] == source


@every_board
def test_titles_and_ids_tell_panels_apart_and_panels_do_not_overlap(board: dict[str, Any]) -> None:
    every = [inner for panel in board["panels"] for inner in (panel, *panel.get("panels", ()))]
    assert [panel["id"] for panel in every] == list(range(1, len(every) + 1))
    titles = [panel["title"] for panel in panels(board)]
    assert sorted(titles) == sorted(set(titles))
    cells: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        covered = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not covered & cells, panel["title"]
        cells |= covered


@each_panel
def test_table_columns_that_are_shown_in_order_are_ones_that_the_queries_give(uid: str, panel: dict[str, Any]) -> None:
    if panel["type"] != "table":
        return
    organize = panel["transformations"][-1]["options"]
    given = set(organize["renameByName"]) | {label for labels in known().values() for label in labels} | {"instance"}
    assert set(organize["indexByName"]) <= given
    named = {override["matcher"]["options"] for override in panel["fieldConfig"]["overrides"]}
    assert {sort["displayName"] for sort in panel["options"]["sortBy"]} <= named


def test_rows_of_tables_of_engines_lead_to_the_engines_dashboard() -> None:
    links = [
        link["url"]
        for panel in panels(LOADED["kvpressure-fleet"])
        for override in panel.get("fieldConfig", {}).get("overrides", ())
        for prop in override["properties"]
        if prop["id"] == "links"
        for link in prop["value"]
    ]
    assert len(links) == 2
    for link in links:
        assert link.startswith("/d/kvpressure-engine?")
        assert "var-target=${__data.fields.target}" in link
        assert link.endswith("${__url_time_range}")


# --- the frame


def test_uids_are_those_that_alerts_and_bookmarks_link_to() -> None:
    assert [board["uid"] for board in LOADED.values()] == list(UIDS)
    assert {*BOARDS.values(), "kvpressure-engine"} <= {*UIDS, "kvpressure-vllm-only"}


@pytest.mark.parametrize("component", ["engine", "gpu", "container", "exporter", "deployment"])
def test_alerts_fill_in_variables_that_the_dashboard_has(component: str) -> None:
    options = Options(load_thresholds(), dashboard_url="https://g")
    url = links(options, "KVPressureX", component, exporter_answers=True)["dashboard_url"]
    board = LOADED[url.partition("/d/")[2].partition("?")[0]]
    names = {one["name"] for one in board["templating"]["list"] if not one.get("skipUrlSync")}
    assert set(re.findall(r"var-(\w+)=", url)) <= names


@every_board
def test_time_refresh_tags_and_links_follow_the_conventions(board: dict[str, Any]) -> None:
    assert board["time"] == {"from": "now-1h", "to": "now"}
    assert (board["refresh"], board["tags"], board["editable"]) == ("30s", ["kvpressure"], True)
    link, *elsewhere = board["links"]
    assert (link["type"], link["tags"], link["asDropdown"]) == ("dashboards", ["kvpressure"], True)
    assert link["includeVars"]
    assert link["keepTime"]
    boxes = {f"${{{one['name']}:raw}}" for one in board["templating"]["list"] if one["type"] == "textbox"}
    assert {one["url"] for one in elsewhere} == boxes == {"${logs:raw}", "${engine_board:raw}"}


@each_board
def test_variables_come_in_order_with_several_values_and_all(board: dict[str, Any]) -> None:
    names = [one["name"] for one in board["templating"]["list"] if not one.get("hide")]
    of_exporters = ["datasource", "cluster", "instance", "target"]
    of_engines = ["datasource", "cluster", "namespace", "model_name", "target", "engine"]
    assert names == (of_exporters if board["uid"] == "kvpressure-exporter" else of_engines)
    for one in variables(board):
        assert one["refresh"] == 2
        if not one.get("hide"):
            assert (one["multi"], one["includeAll"], one["allValue"]) == (True, True, ".*")


@each_board
def test_a_variable_asks_only_for_what_was_chosen_before_it(board: dict[str, Any]) -> None:
    before = ["datasource"]
    for one in variables(board):
        inner = re.fullmatch(r"(?:label_values|query_result)\((.*?)(?:, \w+)?\)", one["query"], re.DOTALL)
        assert inner, one["query"]
        assert set(re.findall(r"\$(\w+)", one["query"])) <= set(before), one["name"]
        found = selectors(plain(inner[1], board))
        assert {selector.name for selector in found} <= set(known())
        before.append(one["name"])


def test_an_engine_that_lacks_labels_is_matched_by_all() -> None:
    assert re.fullmatch(engine_variables(1)[0].build().all_value or "", "")


# --- what dashboard-linter asks for, where it cannot be built


@every_board
def test_the_linters_other_rules_hold(board: dict[str, Any]) -> None:
    source = board["templating"]["list"][0]
    assert (source["type"], source["name"], source["label"]) == ("datasource", "datasource", "Data source")
    for panel in panels(board):
        if panel["type"] != "text":
            assert panel["fieldConfig"]["defaults"]["unit"] in {*UNITS, TOKENS_PER_SECOND, REQUESTS_PER_SECOND, TIMES}
            assert panel["targets"]


def test_the_linter_is_excused_from_rules_on_job_and_instance_alone_and_told_why() -> None:
    exclusions = yaml.safe_load(LINT.read_text())["exclusions"]
    assert set(exclusions) == {f"{what}-{label}-rule" for what in ("template", "target") for label in LABELS_EXCUSED}
    assert all(len(rule["reason"]) > 40 for rule in exclusions.values())


# --- colours and thresholds


@every_board
def test_every_colour_is_of_the_palette(board: dict[str, Any]) -> None:
    allowed = {look.fill for look in CAUSES.values()} | set(SERIES)
    assert set(COLOUR.findall(json.dumps(board))) <= allowed


def test_causes_look_as_on_the_node_page_wherever_they_are_shown() -> None:
    wanted = {str(CODES[cause]): (look.label, look.fill) for cause, look in CAUSES.items()}
    seen = 0
    for _, panel in PANELS:
        fields = panel.get("fieldConfig", {"defaults": {}, "overrides": []})
        mappings = [fields["defaults"].get("mappings", [])]
        mappings += [p["value"] for o in fields["overrides"] for p in o["properties"] if p["id"] == "mappings"]
        for mapping in mappings:
            if mapping and len(mapping[0]["options"]) == len(CAUSES):
                seen += 1
                assert {key: (it["text"], it["color"]) for key, it in mapping[0]["options"].items()} == wanted
    assert seen == 4
    assert sorted(CODES.values()) == list(range(1, len(CAUSES) + 1))


def test_series_of_a_graph_are_told_apart_by_everybody() -> None:
    for deficiency in DEFICIENCIES:
        for one, other in zip(SERIES, SERIES[1:] + SERIES[:1], strict=True):
            assert math.dist(lab(one, deficiency), lab(other, deficiency)) >= 20, (deficiency, one, other)


def test_numbers_that_mean_bad_come_from_the_thresholds() -> None:
    """In the builders' output a line or a colour begins at a threshold, or at one, two or the ratio 1."""
    for make in (fleet.board, engine.board, capacity.board, exporter.board):
        board = json.loads(text_of(make()))
        for panel in panels(board):
            text = json.dumps(panel.get("fieldConfig", {}))
            values = re.findall(r'"value": ([^,}]+), "color"', text)
            assert all(v == "null" or "limits." in v or float(v) in (1, 2) for v in values), panel["title"]
            expressions = " ".join(target["expr"] for target in panel.get("targets", ()))
            assert set(re.findall(r"(?:[<>]=?|==)\s*([0-9.]+)", expressions)) <= {"0"}, panel["title"]


@pytest.mark.parametrize("make", [make for boards in (BOARDS_MADE, VLLM_ONLY) for make in boards])
def test_at_most_eight_panels_are_seen_and_asked_for_before_a_click(make) -> None:
    seen = json.loads(text_of(make()))["panels"]
    first, *others = [panel for panel in seen if panel["type"] == "row"]
    assert not first["collapsed"]
    assert all(row["collapsed"] and row["panels"] for row in others)
    assert 0 < sum(panel["type"] != "row" for panel in seen) <= 8


# --- words


def test_what_to_do_links_to_runbooks_that_there_are() -> None:
    content = next(panel for _, panel in PANELS if panel["type"] == "text")["options"]["content"]
    linked = re.findall(r"\]\(http://\$\{instance\}/runbooks/(\w+)\?target=\$\{target:raw\}", content)
    assert linked == list(engine.RUNBOOKS)
    assert set(linked) <= set(runbooks.names())
