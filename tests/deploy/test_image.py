"""What `make e2e-image` judges an image by, on small trees; no container engine is needed."""

import configparser
import re
import zipfile
from pathlib import Path

import pytest

from tests.e2e_image import bases, contents, settings_of_pip
from tests.e2e_image.programs import MissingError, check
from tests.support.tools import ROOT

TAG = "cpython-313"
METADATA = "thing-1.0.dist-info"


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """A wheel with one module, with the hashes of its files."""
    folder = tmp_path / "made"
    (folder / "thing").mkdir(parents=True)
    (folder / "thing" / "a.py").write_text("A = 1\n")
    (folder / METADATA).mkdir()
    (folder / METADATA / "METADATA").write_text("Name: thing\n")
    listed = ("thing/a.py", f"{METADATA}/METADATA")
    rows = [f"{name},{contents._digest(folder / name)},6" for name in listed]
    (folder / METADATA / "RECORD").write_text("\n".join([*rows, f"{METADATA}/RECORD,,"]) + "\n")
    with zipfile.ZipFile(tmp_path / "thing-1.0-py3-none-any.whl", "w") as archive:
        for name in (*listed, f"{METADATA}/RECORD"):
            archive.write(folder / name, name)
    return tmp_path / "thing-1.0-py3-none-any.whl"


@pytest.fixture
def site(tmp_path: Path, wheel: Path) -> Path:
    """site-packages of an image that has just this wheel, compiled."""
    place = tmp_path / "root" / contents.VENV / "lib" / "python3.13" / "site-packages"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(place)
    (place / METADATA / "INSTALLER").write_text("pip\n")
    (place / "thing" / "__pycache__").mkdir()
    (place / "thing" / "__pycache__" / f"a.{TAG}.pyc").write_bytes(b"\0")
    return place


def wrong(site: Path, wheel: Path) -> dict[str, list[str]]:
    found = contents.differences(site, contents.wheel_record(wheel), TAG)
    return {what: names for what, names in found.items() if names}


def test_an_image_with_the_wheel_and_its_bytecode_differs_in_nothing(site: Path, wheel: Path, tmp_path: Path) -> None:
    assert contents.site_packages(tmp_path / "root") == site
    assert wrong(site, wheel) == {}
    assert contents.unaccounted(site, TAG) == ([], [])


def test_what_is_missing_extra_or_changed_is_told(site: Path, wheel: Path) -> None:
    (site / "thing" / "tests").mkdir()
    (site / "thing" / "tests" / "test_a.py").touch()
    (site / "thing" / "__pycache__" / "a.cpython-312.pyc").touch()
    (site / "thing" / "a.py").write_text("A = 2\n")
    (site / METADATA / "METADATA").unlink()
    assert wrong(site, wheel) == {
        "missing": [f"{METADATA}/METADATA"],
        "extra": ["thing/__pycache__/a.cpython-312.pyc", "thing/tests/test_a.py"],
        "changed": ["thing/a.py"],
    }


def test_a_file_without_bytecode_would_be_compiled_at_every_start(site: Path, wheel: Path) -> None:
    (site / "thing" / "__pycache__" / f"a.{TAG}.pyc").unlink()
    assert wrong(site, wheel) == {"missing": [f"thing/__pycache__/a.{TAG}.pyc"]}


def test_what_no_distribution_lists_is_unaccounted(site: Path) -> None:
    (site / "_distutils_hack").mkdir()
    (site / "_distutils_hack" / "__init__.py").touch()
    (site / "thing" / "a.py").unlink()
    extra, missing = contents.unaccounted(site, TAG)
    assert (extra, missing) == (["_distutils_hack/__init__.py"], ["thing/a.py"])


def test_a_file_with_two_names_is_counted_once_and_a_link_is_not_its_target(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 1000)
    (tmp_path / "b").hardlink_to(tmp_path / "a")
    (tmp_path / "c").symlink_to("a")
    assert contents.size_bytes(tmp_path) == 1000 + len("a")


def test_settings_of_pip_are_those_that_reach_packages_and_a_variable_wins(tmp_path: Path) -> None:
    listed = "global.timeout='5'\nglobal.user='yes'\n:env:.timeout='9'\nglobal.find-links='/a b'\n"
    found = settings_of_pip.chosen(listed)
    assert found == {"timeout": "9", "find-links": "/a b"}
    words = list(settings_of_pip.volumes(tmp_path, {**found, "cert": str(tmp_path)}))
    assert words == [f"--volume={tmp_path}:{tmp_path}:ro", f"--volume={tmp_path / 'pip.conf'}:/etc/pip.conf:ro"]
    parser = configparser.RawConfigParser()
    parser.read(tmp_path / "pip.conf")
    assert dict(parser["global"]) == {**found, "cert": str(tmp_path)}
    assert (tmp_path / "pip.conf").stat().st_mode & 0o777 == 0o600


def test_bases_are_of_the_release_that_the_dockerfile_pins() -> None:
    version, release = bases.pinned()
    assert re.fullmatch(r"3\.1[123]", version)
    assert re.fullmatch(r"[a-z]+", release)


def test_no_index_of_packages_or_images_is_named() -> None:
    texts = [path.read_text() for path in (ROOT / "tests/e2e_image").glob("*.py")]
    texts.append((ROOT / "deploy/docker/Dockerfile").read_text())
    assert len(texts) > 5
    assert [found for text in texts for found in re.findall(r"https?://(?!127\.0\.0\.1|\{)\S+", text)] == []


def test_a_missing_program_is_named_and_never_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingError, match="buildah, debootstrap, iproute2, binutils, util-linux"):
        check()


def test_slim_leaves_out_documents_and_keeps_copyright(tmp_path: Path) -> None:
    for name in ("usr/share/doc/a/copyright", "usr/share/doc/b/README", "var/lib/apt/lists/x", "usr/bin/a"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    bases._trim(tmp_path)
    left = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {"usr/share/doc/a/copyright", "usr/bin/a"}
    assert not (tmp_path / "usr/share/doc/b").exists()
