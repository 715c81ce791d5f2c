"""What a release is made with: archives, bill of materials, the stored audit. No test asks the internet anything."""

import gzip
import hashlib
import importlib.metadata
import io
import json
import re
import signal
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from dashboards.__main__ import templates
from deploy.release import assets, audit
from deploy.release.dist import repacked, sources
from deploy.release.pins import Pin, normalized, read_pins
from referencing import Registry, Resource

from kvpressure import __version__
from kvpressure.bundle import Options, bundle_files
from kvpressure.cli import GROUP, JOINED
from kvpressure.config.thresholds import load_thresholds
from tests.support import built
from tests.support.chart import OPERATOR, rendered, template
from tests.support.processes import eventually, free_port, get, running
from tests.support.release import EPOCH, RELEASE, run_tool

ROOT = Path(__file__).parents[2]
RUNTIME = ROOT / "requirements" / "runtime.txt"
DIGEST = "0" * 64


# --- pins


def test_pins_carry_their_hashes_and_who_needs_them() -> None:
    text = f"a.B_c==1.0 \\\n    --hash=sha256:{DIGEST}\n    # via\n    #   -r runtime.in\n    #   other\n"
    assert read_pins(text) == [Pin("a-b-c", "1.0", (DIGEST,), ("-r runtime.in", "other"))]
    assert read_pins(text)[0].direct


@pytest.mark.parametrize("line", ["-r other.txt", "a>=1", "a @ file:///a.whl", "--index-url=x", "    --hash=md5:00"])
def test_what_is_no_pin_is_an_error_and_not_left_out(line: str) -> None:
    with pytest.raises(ValueError, match="line 3"):
        read_pins(f"b==1 \\\n    --hash=sha256:{DIGEST}\n{line}\n")


def test_a_pin_without_a_hash_is_an_error() -> None:
    with pytest.raises(ValueError, match="without a hash: b"):
        read_pins("b==1\n")


@pytest.mark.parametrize("name", ["runtime", "dev", "release"])
def test_every_requirement_is_pinned_with_hashes_and_names_no_index(name: str) -> None:
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    assert all(pin.sha256 and pin.via for pin in read_pins(text))
    assert "://" not in text
    assert "index-url" not in text


# --- the archives


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    out = tmp_path_factory.mktemp("dist")
    run_tool("dist", "--out", str(out), SOURCE_DATE_EPOCH=str(EPOCH))
    return next(out.glob("*.whl")), next(out.glob("*.tar.gz"))


def package_files() -> set[str]:
    """Every file of the packages, as a wheel names it; links are followed.

    Where a link leads to a folder of the project that holds more than the package needs, only the templates count.
    """
    built = [path.resolve() for path in (ROOT / "dashboards" / "templates").rglob("*.json.j2")]
    there = {*built, *((ROOT / name).resolve() for name in sources(ROOT))}
    names = ("kvpressure", "kvpressure_planner", "kvpressure_incidents")
    folders = [(ROOT / "exporter" / name, Path(name)) for name in names]
    found: set[str] = set()
    for folder, name in folders:
        for entry in folder.iterdir():
            if entry.is_dir():
                folders.append((entry, name / entry.name))
            elif entry.resolve() in there and (
                entry.suffix in {".j2", ".json"} or "kvpressure/bundle/data" not in str(name)
            ):
                found.add(str(name / entry.name))
    return found


def test_sources_are_what_git_tracks_and_without_git_what_no_tool_left_behind(tmp_path: Path) -> None:
    for name in ("a/b.py", "a/__pycache__/b.pyc", "dist/x.whl", ".venv/c", "a/z.egg-info/PKG-INFO"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "link").symlink_to("a")
    assert sources(tmp_path) == ["a/b.py", "link"]
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    subprocess.run(["git", "-C", str(tmp_path), "add", "link"], check=True)
    assert sources(tmp_path) == ["link"]


def test_the_wheel_holds_the_whole_package_and_nothing_else(archives: tuple[Path, Path]) -> None:
    names = set(zipfile.ZipFile(archives[0]).namelist())
    package = {name for name in names if not name.startswith(f"kvpressure-{__version__}.dist-info/")}
    assert package == package_files()
    assert {name.rpartition(".")[2] for name in package} >= {"py", "j2", "css", "js", "md", "yaml", "typed"}


def test_the_wheels_entry_points_are_the_commands_that_a_source_tree_joins(archives: tuple[Path, Path]) -> None:
    metadata = zipfile.Path(archives[0], f"kvpressure-{__version__}.dist-info/")
    points = importlib.metadata.PathDistribution(metadata).entry_points.select(group=GROUP)  # type: ignore[arg-type]
    joined = {name: f"{package}.cli.{name}:command" for name, package in JOINED.items()}
    assert {point.name: point.value for point in points} == joined


def test_the_wheel_holds_the_dashboards_that_are_built_and_not_in_git(archives: tuple[Path, Path]) -> None:
    made = {f"kvpressure/bundle/data/dashboards/{name}": text for name, text in templates().items()}
    assert len(made) == 5
    with zipfile.ZipFile(archives[0]) as wheel:
        assert {name: wheel.read(name).decode() for name in wheel.namelist() if name in made} == made
    assert not [name for name in sources(ROOT) if name.startswith("dashboards/templates/")]


def test_what_a_build_needs_is_pinned_to_what_it_was_tested_with() -> None:
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    (sdk,) = (one.partition(";")[0] for one in needed if one.startswith("grafana-foundation-sdk"))
    for name in ("dev", "release"):
        assert f"\n{sdk} \\\n" in (ROOT / "requirements" / f"{name}.txt").read_text()


def test_the_wheel_holds_no_tests_and_no_path_of_the_machine_that_built_it(archives: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(archives[0]) as wheel:
        contents = {name: wheel.read(name) for name in wheel.namelist()}
    assert [name for name in contents if re.search(r"(^|/)(tests?|bench)/|(^|/)(test_[^/]*|conftest)\.py$", name)] == []
    places = [str(place).encode() for place in (ROOT, archives[0].parent, Path.home(), Path(sys.prefix))]
    assert [name for name, data in contents.items() if any(place in data for place in places)] == []
    assert {name for name in contents if name.startswith("/") or ".." in name} == set()


def test_the_source_archive_holds_the_package_and_no_tests_or_caches(archives: tuple[Path, Path]) -> None:
    with tarfile.open(archives[1]) as archive:
        members = archive.getmembers()
    names = {member.name.partition("/")[2] for member in members if member.isreg()}
    ours = {name.removeprefix("exporter/") for name in names if name.startswith("exporter/")}
    assert package_files() == {name for name in ours if not name.startswith("kvpressure.egg-info/")}
    rest = {name for name in names if not name.startswith("exporter/")}
    assert rest == {"LICENSE", "PKG-INFO", "README.md", "pyproject.toml", "setup.cfg", "setup.py"}
    assert all(member.isreg() or member.isdir() for member in members)


def test_an_archive_says_nothing_of_who_packed_it_and_when(archives: tuple[Path, Path]) -> None:
    with tarfile.open(archives[1]) as archive:
        owners = {(member.uid, member.gid, member.uname, member.gname) for member in archive}
        assert {member.mtime for member in archive} == {EPOCH}
    assert owners == {(0, 0, "", "")}
    assert archives[1].read_bytes()[4:8] == EPOCH.to_bytes(4, "little")


def test_the_same_sources_give_the_same_bytes(archives: tuple[Path, Path], tmp_path: Path) -> None:
    run_tool("dist", "--out", str(tmp_path), SOURCE_DATE_EPOCH=str(EPOCH), PYTHONHASHSEED="7")
    for path in archives:
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()


def test_repacking_changes_nothing_but_what_is_about_the_packing() -> None:
    def packed(names: list[str], mtime: int, uid: int) -> bytes:
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w:gz") as archive:
            for name in names:
                member = tarfile.TarInfo(name)
                member.size, member.mtime, member.uid = len(name), mtime, uid
                archive.addfile(member, io.BytesIO(name.encode()))
        return out.getvalue()

    one, other = repacked(packed(["a", "b"], 5, 0), EPOCH), repacked(packed(["b", "a"], 9, 1000), EPOCH)
    assert one == other
    with tarfile.open(fileobj=io.BytesIO(one)) as archive:
        assert [(m.name, archive.extractfile(m).read()) for m in archive] == [("a", b"a"), ("b", b"b")]  # type: ignore[union-attr]
    assert gzip.decompress(one)


def test_chart_and_bundle_of_a_release_are_whole_and_the_same_bytes_each_time(tmp_path: Path) -> None:
    made = [assets.write(tmp_path / name, EPOCH) for name in ("one", "other")]
    for one, other in zip(*made, strict=True):
        assert one.read_bytes() == other.read_bytes()
        with tarfile.open(one) as archive:
            assert {(member.mtime, member.uid, member.uname, member.mode) for member in archive} == {
                (EPOCH, 0, "", 0o644)
            }
            archive.extractall(tmp_path, filter="data")
    generated = bundle_files(Options(load_thresholds()))
    assert files_below(tmp_path / "bundle") == {name: text.encode() for name, text in generated.items()}
    assert files_below(tmp_path / "kvpressure") == files_below(built.chart())
    assert template(OPERATOR, chart=made[0][1]) == rendered("operator")


# --- the installed wheel


def bare_environment(folder: Path, wheel: Path) -> Path:
    """A virtual environment with the wheel and the pinned runtime requirements, and nothing of what tests need.

    The requirements are linked from the environment that runs the tests, so that no index is asked.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    site = next(folder.glob("lib/python3*/site-packages"))
    for pin in read_pins(RUNTIME.read_text()):
        found = importlib.metadata.distribution(pin.name)
        assert found.version == pin.version, f"{pin.name}: the environment of the tests is not the pinned one"
        for top in {file.parts[0] for file in found.files or [] if file.parts[0] not in ("..", "__pycache__")}:
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(found.locate_file(top))))
    python = str(folder / "bin" / "python")
    words = [sys.executable, "-m", "pip", f"--python={python}", "install", "-q", "--no-index", "--no-deps", str(wheel)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "bin"


@pytest.fixture(scope="module")
def installed(archives: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bare_environment(tmp_path_factory.mktemp("bare") / "venv", archives[0])


def run_installed(installed: Path, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": f"{installed}:/usr/bin:/bin", "HOME": str(cwd), "PYTHONDONTWRITEBYTECODE": "1"}
    program, *rest = words
    return subprocess.run(
        [str(installed / program), *rest], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


def test_the_bare_environment_has_nothing_but_what_is_pinned(installed: Path, tmp_path: Path) -> None:
    code = "import importlib.metadata as m; print(*sorted({d.name for d in m.distributions()}))"
    done = run_installed(installed, "python", "-c", code, cwd=tmp_path)
    wanted = {"kvpressure", *(pin.name for pin in read_pins(RUNTIME.read_text()))}
    assert set(map(normalized, done.stdout.split())) == wanted, done.stderr


@pytest.mark.parametrize("program", ["kvpressure", "kubectl-kvpressure"])
def test_an_installed_wheel_says_its_version(installed: Path, tmp_path: Path, program: str) -> None:
    done = run_installed(installed, program, "--version", cwd=tmp_path)
    assert (done.returncode, __version__ in done.stdout, done.stderr) == (0, True, "")


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_an_installed_wheel_checks_a_config_and_generates_the_same_bundle(installed: Path, tmp_path: Path) -> None:
    example = ROOT / "kvpressure.example.yaml"
    done = run_installed(installed, "kvpressure", "check-config", f"--config.file={example}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    done = run_installed(installed, "kvpressure", "generate", "--out", "bundle", "--all-alerts", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    made, checkouts = files_below(tmp_path / "bundle"), files_below(built.bundle())
    assert made.keys() == checkouts.keys()
    assert [name for name in made if made[name] != checkouts[name]] == []


async def test_an_installed_wheel_runs_the_demo_with_its_page_and_runbooks(installed: Path, tmp_path: Path) -> None:
    port = free_port()
    command = [str(installed / "kvpressure"), "demo", "--speed", "20", f"--web.listen-address=127.0.0.1:{port}"]
    async with running(command, tmp_path / "log", {"PYTHONUNBUFFERED": "1", "PYTHONPATH": ""}) as demo:

        async def shown() -> bool:
            return "kvpressure_admission_blocked_ratio{" in await get(f"http://127.0.0.1:{port}/metrics")

        await eventually(shown, demo)
        assert "<h1" in await get(f"http://127.0.0.1:{port}/")
        assert "KVPressureCacheTooSmall" in await get(f"http://127.0.0.1:{port}/runbooks/")
        assert await demo.end(signal.SIGINT) == 0
        assert "Traceback" not in demo.output()


# --- the bill of materials


@pytest.fixture(scope="module")
def bill(archives: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("bill") / "sbom.cdx.json"
    run_tool("sbom", "--wheel", str(archives[0]), "--out", str(out), SOURCE_DATE_EPOCH=str(EPOCH))
    return out


def schema() -> jsonschema.Draft7Validator:
    """CycloneDX 1.6's own, as the release's tools bring it."""
    (folder,) = RELEASE.glob("lib/python3*/site-packages/cyclonedx/schema/_res")
    resources = [json.loads(path.read_text()) for path in folder.glob("*.schema.json")]
    contents = [(found["$id"], Resource.from_contents(found)) for found in resources if "$id" in found]
    # They name each other by their files in that folder, not by the names that they give themselves.
    contents += [
        (f"http://cyclonedx.org/schema/{path.name}", Resource.from_contents(json.loads(path.read_text())))
        for path in folder.glob("*.schema.json")
    ]
    registry: Registry[Any] = Registry().with_resources(contents)
    (bom,) = (found for found in resources if found.get("$id", "").endswith("bom-1.6.schema.json"))
    return jsonschema.Draft7Validator(bom, registry=registry)


def test_the_bill_is_cyclonedx_and_the_check_can_fail(bill: Path) -> None:
    document = json.loads(bill.read_text())
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    validator = schema()
    assert list(validator.iter_errors(document)) == []
    document["components"][0]["type"] = "thing"
    assert list(validator.iter_errors(document))


def test_the_bill_names_every_pin_with_its_hashes_and_no_other(bill: Path) -> None:
    components = {one["name"]: one for one in json.loads(bill.read_text())["components"]}
    pins = {pin.name: pin for pin in read_pins(RUNTIME.read_text())}
    assert components.keys() == pins.keys()
    for name, pin in pins.items():
        (files,) = components[name]["externalReferences"]
        assert {one["content"] for one in files["hashes"]} == set(pin.sha256)
        assert components[name]["purl"] == f"pkg:pypi/{name}@{pin.version}"


def test_the_bill_is_of_the_wheel_and_every_component_is_reached_from_it(
    bill: Path, archives: tuple[Path, Path]
) -> None:
    document = json.loads(bill.read_text())
    root = document["metadata"]["component"]
    assert root["hashes"] == [{"alg": "SHA-256", "content": hashlib.sha256(archives[0].read_bytes()).hexdigest()}]
    assert (root["version"], root["licenses"]) == (__version__, [{"license": {"id": "Apache-2.0"}}])
    edges = {one["ref"]: one.get("dependsOn", []) for one in document["dependencies"]}
    reached, todo = set(), [root["bom-ref"]]
    while todo:
        ref = todo.pop()
        if ref not in reached:
            reached.add(ref)
            todo.extend(edges[ref])
    assert reached == {root["bom-ref"], *(one["bom-ref"] for one in document["components"])}


def test_the_bill_has_no_noise(bill: Path, archives: tuple[Path, Path], tmp_path: Path) -> None:
    again, other = tmp_path / "again.json", tmp_path / "other.json"
    words = ["--wheel", str(archives[0]), "--out"]
    run_tool("sbom", *words, str(again), SOURCE_DATE_EPOCH=str(EPOCH), PYTHONHASHSEED="7")
    assert again.read_bytes() == bill.read_bytes()
    run_tool("sbom", *words, str(other), SOURCE_DATE_EPOCH=str(EPOCH + 1))
    assert json.loads(other.read_text())["serialNumber"] != json.loads(bill.read_text())["serialNumber"]
    assert "://" not in bill.read_text().replace("http://cyclonedx.org/schema/", "")


# --- the stored audit


def stored() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(audit.STORED.read_text())
    return found


def test_the_stored_audit_is_of_the_requirements_that_are_there() -> None:
    assert stored()["requirements"] == audit.hashes(), "requirements have changed since: run `make audit-deps`"
    names = {pin.name for path in audit.REQUIREMENTS.glob("*.txt") for pin in read_pins(path.read_text())}
    assert stored()["audited"] + len(stored()["not_audited"]) == len(names)
    assert set(map(normalized, stored()["not_audited"])) <= names


def test_no_vulnerability_is_known_of_what_is_pinned() -> None:
    assert stored()["vulnerabilities"] == []


ANSWERS = {
    "a.txt": [{"name": "good", "version": "1", "vulns": []}, {"name": "odd", "skip_reason": "not found"}],
    "b.txt": [
        {"name": "good", "version": "1", "vulns": []},
        {"name": "bad", "version": "2", "vulns": [{"id": "CVE-1", "fix_versions": ["3"]}]},
    ],
}


def test_an_audit_counts_what_was_not_audited_apart_from_what_is_fine() -> None:
    result = audit.summary(ANSWERS, date="2030-01-01", tool="t", requirements={})
    assert (result["audited"], result["not_audited"]) == (2, ["odd"])
    assert result["vulnerabilities"] == [{"package": "bad", "version": "2", "id": "CVE-1", "fixed_in": ["3"]}]
    assert audit.verdict(result, strict=False)[0] == 1


def test_nobody_answering_is_no_pass_when_it_has_to_be_one() -> None:
    result = audit.summary({"a.txt": ANSWERS["a.txt"]}, date="", tool="", requirements={})
    assert [audit.verdict(result, strict=strict)[0] for strict in (False, True)] == [0, 2]
    clean = audit.summary({"a.txt": ANSWERS["a.txt"][:1]}, date="", tool="", requirements={})
    assert audit.verdict(clean, strict=True)[0] == 0


def test_an_answer_is_not_replaced_by_none_for_the_same_requirements() -> None:
    old = {"requirements": {"a": "1"}, "audited": 5}
    assert audit.keeps(old, {"requirements": {"a": "1"}, "audited": 0})
    assert not audit.keeps(old, {"requirements": {"a": "2"}, "audited": 0})
    assert not audit.keeps(old, {"requirements": {"a": "1"}, "audited": 5})
    assert not audit.keeps(None, {"requirements": {}, "audited": 0})
