"""Nothing outside the log directory is ever read, and nothing in it that is not a plain file."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvpressure.model.errors import SourceError
from kvpressure.sources.logs import safe_open
from kvpressure.sources.logs.safe_open import Tree, open_named

SECRET = b"root:$6$secret"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "shadow").write_bytes(SECRET)
    (tmp_path / "docker" / "abc").mkdir(parents=True)
    (tmp_path / "docker" / "abc" / "abc-json.log").write_bytes(b"docker")
    (tmp_path / "pods" / "pod" / "vllm").mkdir(parents=True)
    (tmp_path / "pods" / "pod" / "vllm" / "0.log").write_bytes(b"inside")
    return tmp_path / "pods"


def content(tree: Tree, *parts: str) -> bytes:
    fd = tree.open_file(parts)
    try:
        return os.read(fd, 100)
    finally:
        os.close(fd)


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def refused(tree: Tree, *parts: str) -> str:
    before = open_descriptors()
    with pytest.raises(SourceError) as error:
        content(tree, *parts)
    assert open_descriptors() == before
    assert len(error.value.sentence) < 600
    return error.value.reason


def test_a_file_below_the_root_is_read(root: Path):
    assert content(Tree(root), "pod", "vllm", "0.log") == b"inside"
    assert Tree(root).names(("pod", "vllm")) == ("0.log",)


@pytest.mark.parametrize(
    "target", ["../../../outside/shadow", "{outside}/shadow", "/etc/passwd", "../../..", "/", "/proc/self/mem"]
)
def test_a_link_that_leads_out_is_refused(root: Path, target: str):
    link = root / "pod" / "vllm" / "1.log"
    link.symlink_to(target.format(outside=root.parent / "outside"))
    assert refused(Tree(root), "pod", "vllm", "1.log") == "outside"


def test_a_directory_that_is_a_link_out_is_refused(root: Path):
    (root / "evil").symlink_to(root.parent / "outside")
    assert refused(Tree(root), "evil", "shadow") == "outside"


def test_a_root_whose_name_begins_alike_is_not_inside(root: Path):
    evil = root.with_name("pods-of-others")
    evil.mkdir()
    (evil / "file").write_bytes(SECRET)
    (root / "link").symlink_to(evil / "file")
    assert refused(Tree(root), "link") == "outside"


def test_links_within_the_root_are_followed(root: Path):
    (root / "pod" / "vllm" / "1.log").symlink_to("../../pod/vllm/0.log")
    (root / "again").symlink_to(root / "pod")
    assert content(Tree(root), "again", "vllm", "1.log") == b"inside"


def test_links_into_a_named_directory_are_followed_and_others_are_not(root: Path):
    docker = root.parent / "docker"
    (root / "pod" / "vllm" / "1.log").symlink_to(docker / "abc" / "abc-json.log")
    assert content(Tree(root, [docker]), "pod", "vllm", "1.log") == b"docker"
    assert refused(Tree(root), "pod", "vllm", "1.log") == "outside"
    (docker / "abc" / "way-out").symlink_to(root.parent / "outside" / "shadow")
    (root / "pod" / "vllm" / "2.log").symlink_to(docker / "abc" / "way-out")
    assert refused(Tree(root, [docker]), "pod", "vllm", "2.log") == "outside"


def test_links_in_a_circle_end(root: Path):
    (root / "a").symlink_to("b")
    (root / "b").symlink_to("a")
    assert refused(Tree(root), "a", "0.log") == "outside"


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", "a\0b"])
def test_a_name_that_is_a_path_is_refused(root: Path, name: str):
    assert refused(Tree(root), "pod", name, "0.log") == "outside"


def swapped(monkeypatch: pytest.MonkeyPatch, swap: Callable[[], None]) -> None:
    """Do something between the look at a path and its opening."""
    real = safe_open.descriptor_at

    def late(path: str) -> int:
        swap()
        return real(path)

    monkeypatch.setattr(safe_open, "descriptor_at", late)


def test_a_link_put_in_place_of_a_file_at_the_last_moment_is_not_followed(root: Path, monkeypatch):
    file = root / "pod" / "vllm" / "0.log"

    def swap() -> None:
        file.unlink()
        file.symlink_to(root.parent / "outside" / "shadow")

    swapped(monkeypatch, swap)
    assert refused(Tree(root), "pod", "vllm", "0.log") == "outside"


def test_a_fifo_put_in_place_of_a_file_at_the_last_moment_is_refused_without_waiting(root: Path, monkeypatch):
    file = root / "pod" / "vllm" / "0.log"

    def swap() -> None:
        file.unlink()
        os.mkfifo(file)

    swapped(monkeypatch, swap)
    assert refused(Tree(root), "pod", "vllm", "0.log") == "not_a_file"


def test_a_directory_swapped_for_a_link_at_the_last_moment_is_not_followed(root: Path, monkeypatch):
    directory = root / "pod" / "vllm"
    (directory / "shadow").touch()

    def swap() -> None:
        directory.rename(root / "pod" / "moved")
        directory.symlink_to(root.parent / "outside")

    swapped(monkeypatch, swap)
    assert refused(Tree(root), "pod", "vllm", "shadow") == "not_a_file"


def test_a_link_to_what_is_not_mounted_here_names_the_directory_to_allow(root: Path):
    (root / "pod" / "vllm" / "1.log").symlink_to(root.parent / "not-mounted" / "1.log")
    with pytest.raises(SourceError, match=r"not-mounted/1.log, outside .* logs.link_directories"):
        content(Tree(root), "pod", "vllm", "1.log")
    with pytest.raises(SourceError, match="is not there"):
        content(Tree(root, [root.parent / "not-mounted"]), "pod", "vllm", "1.log")


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


@pytest.mark.parametrize("make", [make_fifo, make_socket, Path.mkdir])
def test_what_is_no_regular_file_is_refused_without_waiting(root: Path, make, monkeypatch):
    monkeypatch.chdir(root / "pod" / "vllm")  # a socket's path must be short
    make(Path("1.log"))
    assert refused(Tree(root), "pod", "vllm", "1.log") == "not_a_file"
    with pytest.raises(SourceError, match="not a regular file"):
        open_named(root / "pod" / "vllm" / "1.log")


@pytest.mark.fault(
    "who writes a log that the settings name puts a link in its place, or in that of its directory",
    "it is not followed; links of root, and of the exporter's own user, are",
)
@pytest.mark.parametrize("place", ["vllm/current.log", "vllm"])
def test_a_link_that_the_logs_owner_made_is_not_followed(tmp_path: Path, place: str, monkeypatch):
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "current.log").write_text("secret")
    link = tmp_path / place
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(tmp_path / "secrets" / ("current.log" if link.suffix else ""))
    os.close(open_named(tmp_path / "vllm" / "current.log"))  # it is ours
    real = os.lstat

    def of_another(path, **more):
        found = list(real(path, **more))
        found[4] = 4242 if str(path) == str(link) else found[4]
        return os.stat_result(found)

    monkeypatch.setattr(os, "lstat", of_another)
    with pytest.raises(SourceError, match="is a symbolic link made by user 4242, which is not followed"):
        open_named(tmp_path / "vllm" / "current.log")


def test_a_directory_that_becomes_a_link_while_it_is_looked_at_is_noticed(tmp_path: Path, monkeypatch):
    for name in ("secrets", "vllm"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.log").write_text(name)
    real = os.open

    def late(path, *more, **others):
        if str(path).endswith("vllm/x.log"):
            (tmp_path / "vllm").rename(tmp_path / "before")
            (tmp_path / "vllm").symlink_to(tmp_path / "secrets")
        return real(path, *more, **others)

    monkeypatch.setattr(os, "open", late)
    with pytest.raises(SourceError, match="was replaced by a symbolic link meanwhile"):
        open_named(tmp_path / "vllm" / "x.log")


def test_a_device_that_an_operator_named_is_refused():
    with pytest.raises(SourceError, match="not a regular file"):
        open_named(Path("/dev/null"))


@pytest.mark.parametrize(
    ("parts", "reason"), [(("nobody", "0.log"), "missing"), (("pod", "vllm", "0.log", "x"), "missing")]
)
def test_what_is_not_there_is_missing(root: Path, parts: tuple[str, ...], reason: str):
    assert refused(Tree(root), *parts) == reason


def test_a_file_that_may_not_be_read_names_the_user_and_what_to_do(root: Path, monkeypatch):
    def denied(*_: object, **__: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(safe_open, "descriptor_at", denied)  # root, who runs some of these tests, may read everything
    with pytest.raises(SourceError, match=f"user {os.geteuid()}") as error:
        content(Tree(root), "pod", "vllm", "0.log")
    assert error.value.reason == "permission"
    assert "group 0" in error.value.sentence


NAMES = st.sampled_from(["pod", "vllm", "0.log", "out", "up", "abs", "self", "..", "outside", "shadow"])
TARGETS = st.sampled_from(
    [
        "..",
        "../..",
        "../../..",
        "../outside",
        "../../outside/shadow",
        "pod/vllm",
        "vllm/../..",
        "ABS",
        "ABS/shadow",
        ".",
    ]
)


@given(st.lists(NAMES, min_size=1, max_size=6), st.dictionaries(st.sampled_from(["out", "up", "abs", "self"]), TARGETS))
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_path_and_no_links_lead_to_the_secret(root: Path, parts: list[str], links: dict[str, str]):
    made = []
    for where in (root, root / "pod", root / "pod" / "vllm"):
        for name, target in links.items():
            (where / name).symlink_to(target.replace("ABS", str(root.parent / "outside")))
            made.append(where / name)
    try:
        assert content(Tree(root), *parts) == b"inside"
    except SourceError:
        pass
    finally:
        for link in made:
            link.unlink()
