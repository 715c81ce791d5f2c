import dataclasses
from pathlib import Path

import pytest
import yaml

from kvpressure.config.settings import (
    FLAGS,
    ConfigError,
    ListenAddress,
    Settings,
    load_settings,
    parse_listen_address,
)
from kvpressure.config.settings.keys import keys
from kvpressure.config.settings.section import fields_of
from kvpressure.config.strict_yaml import GONE
from kvpressure.config.thresholds import load_thresholds
from kvpressure.daemon.node_sources import settings_model
from tests.support.expectations import expected, fixtures
from tests.support.settings_reference import meaning, settings_reference, type_name
from tests.support.tools import ROOT

DOCS = ROOT / "docs" / "configuration.md"
EXAMPLE = ROOT / "kvpressure.example.yaml"


@pytest.fixture(autouse=True)
def _empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def from_file(text: str, **environ: str) -> Settings:
    Path("kvpressure.yaml").write_text(text)
    return load_settings({}, environ)


def problems(flags: dict[str, str] | None = None, environ: dict[str, str] | None = None, text: str = "") -> list[str]:
    Path("kvpressure.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_settings(flags or {}, environ or {}, settings_model())
    return [str(problem) for problem in caught.value.problems]


def test_nothing_set_means_a_single_machine_with_the_documented_defaults() -> None:
    settings = load_settings({}, {})
    assert settings.single_machine
    assert settings.config_file is None
    assert settings.web.listen_address == (ListenAddress("", 10405),)
    assert (settings.poll.interval_seconds, settings.poll.timeout_seconds) == (1.0, 10.0)
    assert (settings.window_seconds, settings.long_window_seconds, settings.staleness_seconds) == (60, 600, 10)
    assert settings.poll.max_page_bytes == 8 * 1024 * 1024


@pytest.mark.parametrize("text", ["", "engines:\n", "engines:\n  targets:\n", "log: {level: debug}\n"])
def test_a_file_that_configures_no_engines_is_still_a_single_machine(text: str) -> None:
    assert from_file(text).single_machine


@pytest.mark.parametrize("text", ["engines: {targets: []}\n", "engines: {file_sd: []}\n"])
def test_an_empty_list_of_engines_means_none_and_no_single_machine(text: str) -> None:
    assert not from_file(text).single_machine


def test_flags_win_over_the_environment_which_wins_over_the_file() -> None:
    Path("kvpressure.yaml").write_text("log: {level: debug, format: json}\nwindow_seconds: 120\n")
    environ = {"KVPRESSURE_LOG__LEVEL": "warning", "KVPRESSURE_WINDOW_SECONDS": "90"}
    assert load_settings({}, {}).log.level == "debug"
    assert load_settings({}, environ).log.level == "warning"
    settings = load_settings({"--log.level": "error"}, environ)
    assert (settings.log.level, settings.log.format, settings.window_seconds) == ("error", "json", 90)


def test_every_key_outside_lists_has_an_environment_variable_that_sets_it() -> None:
    values = {
        "string": "x", "path": "x", "number": "30", "integer": "100000", "boolean": "true",
        "address or list": ":1", "`auto` or list": "amd,nvidia", "list": "[]",
    }  # fmt: skip
    special = {"proc_dir": "/x", "cgroup_dir": "/x", "directory": "/x", "resource_names": "a.com/gpu", "port": "9"}
    special |= {"telemetry_path": "/x", "max_targets": "9", "ranks": "9", "max_engines": "9"}
    apart = {"poll.bearer_token_file", "poll.timeout_seconds", "kubernetes.bearer_token_file"}
    environ = {}
    for key in keys(Settings):
        if key.in_list or ".".join(key.path) in apart:
            continue
        choice = type_name(key).removeprefix("one of ").split(", ")[-1]
        environ[key.env] = special.get(key.path[-1], values.get(type_name(key), choice))
    environ |= {
        "KVPRESSURE_KUBERNETES__PATH": "/x",
        "KVPRESSURE_WINDOW_SECONDS": "300",
        "KVPRESSURE_LONG_WINDOW_SECONDS": "300",
        "KVPRESSURE_STALENESS_SECONDS": "90",
    }
    settings = load_settings({}, environ)
    assert settings.gpu.vendors == ("amd", "nvidia")
    assert settings.poll.basic_auth is not None
    assert settings.poll.tls.insecure_skip_verify
    assert settings.limits.max_engines == 9
    assert not settings.single_machine


def test_targets_can_come_from_the_environment() -> None:
    text = '[{url: "http://gpu-1:8000", gpus: [0, 1]}, {url: "https://gpu-2/m", name: b}]'
    first, second = load_settings({}, {"KVPRESSURE_ENGINES__TARGETS": text}).engines.targets
    assert (first.name, first.url, first.path, first.gpus) == (
        "gpu-1:8000",
        "http://gpu-1:8000",
        "/metrics",
        ("0", "1"),
    )
    assert (second.name, second.url, second.path, second.gpus) == ("b", "https://gpu-2", "/m", None)


def test_problems_of_file_environment_and_flags_come_together_each_with_its_place() -> None:
    found = problems(
        {"--web.listen-address": "foo", "--log.level": "loud"},
        {"KVPRESSURE_POLL__INTERVAL_SECONDS": "soon", "KVPRESSURE_ENGINES__TARGETS": "[{url: x}, {}]"},
        "window_seconds: 5\n",
    )
    assert sorted(found) == [
        "--log.level: must be 'debug', 'info', 'warning' or 'error', got 'loud'",
        "--web.listen-address: must be host:port, :port or [ipv6]:port, got 'foo'",
        "environment KVPRESSURE_ENGINES__TARGETS: engines.targets[0].url: must start with http:// or https://, got 'x'",
        "environment KVPRESSURE_ENGINES__TARGETS: engines.targets[1].url: is required",
        "environment KVPRESSURE_POLL__INTERVAL_SECONDS: must be a number, got 'soon'",
        "kvpressure.yaml:1: window_seconds: must be at least 20, got 5",
    ]


def test_unknown_variables_and_flags_are_errors_with_a_suggestion() -> None:
    found = problems({"--log.levl": "x"}, {"KVPRESSURE_WINDOW_SECOND": "1", "KVPRESSURE_POLL": "1"})
    assert "--log.levl: unknown flag; did you mean '--log.level'?" in found
    variable = "environment KVPRESSURE_WINDOW_SECOND: unknown variable; did you mean 'KVPRESSURE_WINDOW_SECONDS'?"
    assert variable in found
    assert any(line.startswith("environment KVPRESSURE_POLL: unknown variable") for line in found)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("engines: {target: []}", "engines.target: unknown key; did you mean 'targets'?"),
        ("engines: {poll_interval: 5}", "engines.poll_interval: unknown key; did you mean 'poll.interval_seconds'?"),
        (
            "engines: {targets: ['box:8000']}",
            "engines.targets[0]: must be a mapping of keys to values, got 'box:8000'; write url: http://box:8000",
        ),
    ],
)
def test_usual_mistakes_come_with_what_to_write(text: str, problem: str) -> None:
    assert problems(text=text) == [f"kvpressure.yaml:1: {problem}"]


@pytest.mark.parametrize("name", sorted(GONE))
def test_a_setting_that_is_gone_says_what_takes_its_place(name: str) -> None:
    *sections, key = name.split(".")
    text = f"{key}: 1"
    for section in reversed(sections):
        text = f"{section}: {{{text}}}"
    said = f"is gone: {GONE[name]}"
    assert problems(text=text) == [f"kvpressure.yaml:1: {name}: {said}"]
    variable = "KVPRESSURE_" + name.replace(".", "__").upper()
    assert problems({}, {variable: "1"}) == [f"environment {variable}: {said}"]


def test_a_key_of_a_section_that_is_gone_says_so() -> None:
    variable = "KVPRESSURE_OTLP__ENDPOINT"
    assert problems({}, {variable: "http://x:1"}) == [f"environment {variable}: is gone: {GONE['otlp']}"]


def test_the_variables_that_kubernetes_makes_for_a_service_of_our_name_are_ignored() -> None:
    environ = {
        "KVPRESSURE_SERVICE_HOST": "10.0.0.1",
        "KVPRESSURE_SERVICE_PORT": "10405",
        "KVPRESSURE_SERVICE_PORT_HTTP_METRICS": "10405",
        "KVPRESSURE_PORT": "tcp://10.0.0.1:10405",
        "KVPRESSURE_PORT_10405_TCP": "tcp://10.0.0.1:10405",
        "KVPRESSURE_PORT_10405_TCP_ADDR": "10.0.0.1",
        "KVPRESSURE_EXPORTER_SERVICE_HOST": "10.0.0.1",
    }
    assert load_settings({}, environ) == load_settings({}, {})


def test_an_empty_variable_is_as_good_as_none_and_other_peoples_variables_are_left_alone() -> None:
    environ = {"KVPRESSURE_WINDOW_SECONDS": "", "HOME": "/", "KVPRESSUREX": "1"}
    assert load_settings({}, environ) == load_settings({}, {})


def test_a_named_file_that_is_missing_is_an_error_and_a_default_one_is_not() -> None:
    for flags, environ in (({"--config.file": "x.yaml"}, {}), ({}, {"KVPRESSURE_CONFIG_FILE": "x.yaml"})):
        with pytest.raises(ConfigError, match=r"^x\.yaml: cannot be read: No such file or directory$"):
            load_settings(flags, environ)


def test_a_directory_or_binary_in_place_of_the_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: it is a directory, not a regular file"):
        load_settings({"--config.file": str(tmp_path)}, {})
    Path("b.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"^b\.yaml: is not UTF-8 at byte 0$"):
        load_settings({"--config.file": "b.yaml"}, {})


def test_paths_in_the_file_are_relative_to_it_and_others_to_the_working_directory(tmp_path: Path) -> None:
    Path("etc").mkdir()
    Path("etc/k.yaml").write_text("thresholds_file: t.yaml\nengines: {file_sd: [{files: [sd/*.json, /abs/a.yml]}]}\n")
    settings = load_settings({"--config.file": "etc/k.yaml", "--web.config.file": "web.yaml"}, {})
    assert settings.thresholds_file == tmp_path / "etc" / "t.yaml"
    assert settings.engines.file_sd[0].files == (tmp_path / "etc" / "sd" / "*.json", Path("/abs/a.yml"))
    assert settings.web.config_file == tmp_path / "web.yaml"
    assert settings.watched_files == (Path("etc/k.yaml"), tmp_path / "etc" / "t.yaml")


def test_logs_and_directories_in_the_file_are_relative_to_it_too(tmp_path: Path) -> None:
    Path("etc").mkdir()
    Path("etc/k.yaml").write_text(
        "logs: {directory: pods, link_directories: [docker], files: [{target: a, path: a.log}]}\n"
        "host: {proc_dir: proc}\nweb: {telemetry_path: /m}\n"
        "engines: {targets: [{name: a, url: 'http://gpu-1:8000', path: /x}]}\n"
    )
    settings = load_settings({"--config.file": "etc/k.yaml"}, {})
    etc = tmp_path / "etc"
    assert (settings.logs.directory, settings.logs.link_directories) == (etc / "pods", (etc / "docker",))
    assert settings.logs.files[0].path == etc / "a.log"
    assert settings.host.proc_dir == etc / "proc"
    assert (settings.web.telemetry_path, settings.engines.targets[0].path) == ("/m", "/x")


@pytest.mark.parametrize(
    ("interval", "expected"),
    [(0.2, (10, 6, 60, 10)), (10, (10, 10, 60, 30)), (60, (10, 60, 240, 180))],
)
def test_any_poll_interval_alone_gives_settings_that_agree(interval: float, expected: tuple[float, ...]) -> None:
    settings = from_file(f"poll: {{interval_seconds: {interval}}}\n")
    poll = settings.poll
    found = (poll.timeout_seconds, poll.histogram_interval_seconds, settings.window_seconds, settings.staleness_seconds)
    assert found == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "address"),
    [(":10405", ("", 10405)), ("[::1]:9", ("::1", 9)), ("127.0.0.1:0", ("127.0.0.1", 0)), ("gpu-1:80", ("gpu-1", 80))],
)
def test_listen_addresses_are_written_as_prometheus_does(text: str, address: tuple[str, int]) -> None:
    assert parse_listen_address(text) == address
    assert str(parse_listen_address(text)) == text


@pytest.mark.parametrize("text", ["10405", "::1:9", "[::1]", "[::1:9", "a b:1", ":x", ":-1", ":65536", "", ":٣"])
def test_what_is_no_listen_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must "):
        parse_listen_address(text)


def test_several_listen_addresses_are_a_list_or_separated_by_commas() -> None:
    both = (ListenAddress("127.0.0.1", 1), ListenAddress("::1", 1))
    assert from_file('web: {listen_address: ["127.0.0.1:1", "[::1]:1"]}\n').web.listen_address == both
    assert load_settings({"--web.listen-address": "127.0.0.1:1,[::1]:1"}, {}).web.listen_address == both
    assert problems(text='web: {listen_address: [":1", ":1"]}\n')[0].endswith("lists an address twice")


def test_gpus_of_a_mig_instance_stay_what_was_written() -> None:
    settings = from_file("engines: {targets: [{url: 'http://a:1', gpus: [1:0, MIG-aa/1/0]}]}\n")
    assert settings.engines.targets[0].gpus == ("1:0", "MIG-aa/1/0")


def test_settings_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        load_settings({}, {}).poll.interval_seconds = 2.0


def test_every_flag_sets_a_key_that_exists() -> None:
    assert set(FLAGS.values()) <= {key.path for key in keys(Settings)}


def test_the_reference_is_what_the_code_says() -> None:
    assert DOCS.read_text() == settings_reference(settings_model()), "docs/configuration.md is stale: run `make docs`"


def test_every_key_says_what_it_means() -> None:
    assert [".".join(key.path) for key in keys(Settings) if not meaning(key)] == []


def test_the_example_file_is_valid_and_names_every_section() -> None:
    settings = load_settings({"--config.file": str(EXAMPLE)}, {})
    assert not settings.single_machine
    given = {name for name, value in yaml.safe_load(EXAMPLE.read_text()).items() if value is not None}
    assert set(fields_of(Settings)) - given == {"thresholds_file"}


@pytest.mark.fault(
    "a settings or thresholds file of thousands of unknown keys",
    "suggestions are searched only for the problems that are shown, because a search for all would take minutes",
)
def test_what_was_meant_is_looked_for_only_where_it_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    for module in ("kvpressure.config.settings.keys", "kvpressure.config.thresholds"):
        monkeypatch.setattr(f"{module}.get_close_matches", lambda word, *_: looked.append(word) or [])
    text = "".join(f"k{n}: 1\n" for n in range(3000))
    (tmp_path / "many.yaml").write_text(text)
    with pytest.raises(ConfigError, match="2900 more problems"):
        load_settings({"config.file": str(tmp_path / "many.yaml")}, {})
    assert 100 <= len(looked) <= 200  # among the keys beside it, then among all
    looked.clear()
    with pytest.raises(ConfigError, match="2900 more problems"):
        load_thresholds(text)
    assert len(looked) == 100


@pytest.mark.parametrize("path", fixtures("settings"), ids=lambda path: path.stem)
def test_a_bad_file_is_reported_whole_with_the_line_of_every_problem(path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings({"--config.file": str(path)}, {})
    assert sorted(map(str, caught.value.problems)) == sorted(expected(path))
    assert "hunter2" not in str(caught.value)
