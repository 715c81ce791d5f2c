"""One version everywhere: the script that a release rests on, on this checkout and on broken copies of it."""

import shutil
from pathlib import Path

import pytest
from deploy.release import version

from kvpressure import __version__
from tests.support.tools import ROOT


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for name in (version.CHANGELOG, *version.NAMED):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_this_checkout_agrees_with_its_changelog() -> None:
    assert version.problems(ROOT, None) == []
    assert version.newest((ROOT / version.CHANGELOG).read_text()).version == __version__


@pytest.mark.parametrize("name", version.NAMED)
def test_a_version_that_was_forgotten_is_named_with_its_file(copy: Path, name: str) -> None:
    edit(copy / name, __version__, "9.9.9")
    found = version.problems(copy, None)
    assert found
    assert set(found) == {f"{name} says 9.9.9, CHANGELOG.md says {__version__}"}


def test_the_charts_two_versions_count_each(copy: Path) -> None:
    edit(copy / "deploy/helm/kvpressure/Chart.yaml", f"appVersion: {__version__}", "appVersion: 9.9.9")
    assert len(version.problems(copy, None)) == 1


def test_a_file_in_which_no_version_is_found_is_no_agreement(copy: Path) -> None:
    (copy / "pyproject.toml").write_text("")
    assert "no version" in version.problems(copy, None)[0]


def test_a_release_needs_its_own_section_and_its_own_tag(copy: Path) -> None:
    text = f"# Changelog\n\n## {__version__} (2030-01-02)\n\n- one\n- two\n\n## 0.0.1 (2029-01-02)\n\n- old\n"
    (copy / version.CHANGELOG).write_text(text)
    assert version.problems(copy, f"v{__version__}") == []
    assert version.problems(copy, "v9.9.9") == [f"the tag is v9.9.9, CHANGELOG.md says {__version__}"]
    assert version.newest(text) == version.Section(__version__, True, "- one\n- two\n")
    (copy / version.CHANGELOG).write_text(f"## Unreleased ({__version__})\n")
    assert "still under Unreleased" in version.problems(copy, f"v{__version__}")[0]


@pytest.mark.parametrize("heading", ["", "## Unreleased", "## 0.1.0", "## v0.1.0 (2030-01-02)", "## 0.1 (2030-01-02)"])
def test_a_heading_that_says_no_version_is_an_error(copy: Path, heading: str) -> None:
    (copy / version.CHANGELOG).write_text(f"# Changelog\n\n{heading}\n")
    (problem,) = version.problems(copy, None)
    assert "the first section must be" in problem


def test_the_notes_are_the_newest_section(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert version.main(["--notes", str(tmp_path / "notes.md")]) == 0
    assert capsys.readouterr().out == f"{__version__}\n"
    assert (tmp_path / "notes.md").read_text().startswith("The first release. ")
    assert version.main(["--tag", "v9.9.9"]) == 1
    assert "the tag is v9.9.9" in capsys.readouterr().err
