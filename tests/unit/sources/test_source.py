"""What sources know is put together, and a source brings its own section of the settings."""

from pathlib import Path
from typing import Annotated

import pytest

from kvpressure.config.settings import ConfigError, load_settings, with_sections
from kvpressure.config.settings.section import Section, Within
from kvpressure.model.environment import Assignment, ContainerId, Environment, HostReport
from kvpressure.sources.source import merged
from tests.support.settings_reference import settings_reference

A, B = ContainerId("llm", "a", "vllm"), ContainerId("llm", "b", "vllm")


class PageSettings(Section):
    """A page that a source reads."""

    interval_seconds: Annotated[float, Within(1, 60)] = 2.0
    """Time between two readings."""


def test_fields_of_all_are_put_together_and_unknown_ones_change_nothing():
    first = Environment(devices={A: Assignment(("GPU-1",))}, problems=("one",), memory_pressure=False)
    second = Environment(devices={B: Assignment(("GPU-2",))}, problems=("two",), host=HostReport(1.0))
    found = merged((first, second, Environment()))
    assert found.devices == {**first.devices, **second.devices}
    assert (found.problems, found.memory_pressure, found.host) == (("one", "two"), False, HostReport(1.0))
    assert merged(()) == Environment()


def test_a_source_brings_its_section(tmp_path: Path):
    model = with_sections({"page": PageSettings})
    settings = load_settings({}, {"KVPRESSURE_PAGE__INTERVAL_SECONDS": "5"}, model)
    assert settings.page == PageSettings(interval_seconds=5.0)
    assert "`KVPRESSURE_PAGE__INTERVAL_SECONDS`" in settings_reference(model)
    (tmp_path / "k.yaml").write_text("page:\n  interval_second: 3\n")
    with pytest.raises(ConfigError, match="did you mean 'interval_seconds'"):
        load_settings({"--config.file": str(tmp_path / "k.yaml")}, {}, model)
    with pytest.raises(ConfigError, match="unknown key"):
        load_settings({"--config.file": str(tmp_path / "k.yaml")}, {})
