from __future__ import annotations

from pathlib import Path

import pytest

from kvpressure.config.settings import ConfigError, load_settings
from tests.support.expectations import expected, fixtures


@pytest.mark.parametrize("path", fixtures("settings"), ids=lambda path: path.stem)
def test_a_bad_file_is_reported_whole_with_the_line_of_every_problem(path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings({"--config.file": str(path)}, {})
    assert sorted(map(str, caught.value.problems)) == sorted(expected(path))


@pytest.mark.parametrize("path", fixtures("settings"), ids=lambda path: path.stem)
def test_no_message_repeats_a_password(path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings({"--config.file": str(path)}, {})
    assert "hunter2" not in str(caught.value)
