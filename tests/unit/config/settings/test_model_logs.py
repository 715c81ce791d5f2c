"""What may be written under `logs` and `host`."""

from pathlib import Path

import pytest

from kvpressure.config.settings import ConfigError
from kvpressure.config.settings.keys import validate
from kvpressure.config.settings.model import HostSettings, LogFileSettings, LogsSettings


@pytest.mark.parametrize(("written", "read"), [(True, "true"), (False, "false"), ("auto", "auto"), ("true", "true")])
def test_the_switch_takes_words_and_yaml_booleans(written: object, read: str):
    assert validate(LogsSettings, {"enabled": written}).enabled == read


@pytest.mark.parametrize("written", ["yes", 1, None, "True"])
def test_the_switch_takes_nothing_else(written: object):
    with pytest.raises(ConfigError):
        validate(LogsSettings, {"enabled": written})


def test_without_settings_the_usual_places_are_read():
    assert LogsSettings().directory == Path("/var/log/pods")
    assert (HostSettings().proc_dir, HostSettings().cgroup_dir) == (Path("/proc"), Path("/sys/fs/cgroup"))


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"target": "a"}, "needs either path or journal_unit"),
        ({"target": "a", "path": "/l", "journal_unit": "u"}, "needs either path or journal_unit"),
        ({"target": "a", "path": "relative.log"}, "must be an absolute path"),
        ({"target": "a", "journal_unit": "--all"}, "must be the name of a systemd unit"),
        ({"target": "a", "journal_unit": "a b"}, "must be the name of a systemd unit"),
        ({"target": " ", "path": "/l"}, "must not be empty"),
    ],
)
def test_a_log_file_needs_a_target_and_one_place(entry: dict[str, str], said: str):
    with pytest.raises(ConfigError, match=said):
        validate(LogFileSettings, entry)


@pytest.mark.parametrize("unit", ["vllm.service", "vllm@70b.service", r"dev-vllm\x2d1.service"])
def test_units_of_all_spellings_are_taken(unit: str):
    assert validate(LogFileSettings, {"target": "a", "journal_unit": unit}).journal_unit == unit
