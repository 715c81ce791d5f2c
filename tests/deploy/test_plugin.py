"""The kubectl plugin's archive and krew manifest, without an index: what pip would install is written by hand."""

import io
import subprocess
import sys
import tarfile
from pathlib import Path

import jsonschema
import pytest
import yaml
from deploy.release import plugin

from kvpressure import __version__

EPOCH = 1_700_000_000
DIGESTS = {"linux-amd64": "a" * 64, "linux-arm64": "b" * 64}
TEXT = {"type": "string", "minLength": 1}
# What krew's own validation asks of a manifest (its pkg/index/validation).
SCHEMA = {
    "type": "object",
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "additionalProperties": False,
    "properties": {
        "apiVersion": {"const": "krew.googlecontainertools.github.com/v1alpha2"},
        "kind": {"const": "Plugin"},
        "metadata": {"type": "object", "properties": {"name": {"pattern": r"^[\w-]+$"}}, "required": ["name"]},
        "spec": {
            "type": "object",
            "required": ["version", "shortDescription", "platforms"],
            "additionalProperties": False,
            "properties": {
                "version": {"pattern": r"^v\d+\.\d+\.\d+$"},
                "homepage": TEXT,
                "shortDescription": {"type": "string", "maxLength": 70, "pattern": r"^[^\n]+$"},
                "description": TEXT,
                "caveats": TEXT,
                "platforms": {
                    "type": "array",
                    "minItems": 1,
                    "items": {
                        "type": "object",
                        "required": ["uri", "sha256", "selector", "bin", "files"],
                        "additionalProperties": False,
                        "properties": {
                            "uri": {"pattern": "^https://"},
                            "sha256": {"pattern": "^[a-f0-9]{64}$"},
                            "bin": TEXT,
                            "selector": {"type": "object", "minProperties": 1},
                            "files": {"type": "array", "minItems": 1, "items": {"required": ["from", "to"]}},
                        },
                    },
                },
            },
        },
    },
}


def errors(manifest: object) -> list[str]:
    return [error.message for error in jsonschema.Draft202012Validator(SCHEMA).iter_errors(manifest)]


def test_the_manifest_is_one_that_krew_takes_and_the_check_can_fail() -> None:
    manifest = yaml.safe_load(plugin.manifest(__version__, "owner/name", DIGESTS))
    assert errors(manifest) == []
    long = [line for key in ("description", "caveats") for line in manifest["spec"][key].splitlines() if len(line) > 80]
    assert long == [], "krew warns of these"
    for platform in manifest["spec"]["platforms"]:
        name = "-".join(platform["selector"]["matchLabels"].values())
        assert platform["sha256"] == DIGESTS[name]
        assert platform["uri"].endswith(f"/v{__version__}/kubectl-kvpressure-{name}.tar.gz")
    manifest["spec"]["platforms"][0]["sha256"] = "0"
    assert errors(manifest)


def test_a_platform_without_a_checksum_or_a_strange_repository_ends_the_release() -> None:
    with pytest.raises(KeyError, match="linux_arm64"):
        plugin.manifest(__version__, "owner/name", {"linux-amd64": "a" * 64})
    with pytest.raises(ValueError, match="OWNER/NAME"):
        plugin.manifest(__version__, "https://x/y", DIGESTS)


def test_compiled_modules_of_every_python_share_a_folder_and_a_module_that_differs_is_refused(tmp_path: Path) -> None:
    for python in ("311", "312"):
        folder = tmp_path / python
        (folder / "p-1.dist-info").mkdir(parents=True)
        (folder / "p.py").write_text("same")
        (folder / f"_p.cpython-{python}-x86_64-linux-gnu.so").touch()
        (folder / "p-1.dist-info" / "WHEEL").write_text(python)
    found = plugin.merged([tmp_path / "311", tmp_path / "312"])
    assert len([name for name in found if name.endswith(".so")]) == 2
    (tmp_path / "312" / "p.py").write_text("other")
    with pytest.raises(ValueError, match=r"p\.py is not the same"):
        plugin.merged([tmp_path / "311", tmp_path / "312"])


def test_the_archive_is_the_same_bytes_and_its_launcher_starts_what_lies_beside_it(tmp_path: Path) -> None:
    main = b"import sys\ndef main():\n    print(*sys.argv)\n"
    files = {"kvpressure/__init__.py": b"", "kvpressure/cli.py": main}
    assert plugin.archive(files, EPOCH) == plugin.archive(dict(reversed(files.items())), EPOCH)
    with tarfile.open(fileobj=io.BytesIO(plugin.archive(files, EPOCH))) as archive:
        archive.extractall(tmp_path, filter="data")
    # krew links to the program from a folder on PATH.
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "kubectl-kvpressure").symlink_to(tmp_path / "kubectl-kvpressure")
    (tmp_path / "bin" / "python3").symlink_to(sys.executable)
    for name in ("sh", "dirname", "readlink"):
        (tmp_path / "bin" / name).symlink_to(Path("/usr/bin") / name)
    environment = {"PATH": str(tmp_path / "bin")}
    words = [str(tmp_path / "bin" / "kubectl-kvpressure"), "triage", "a b"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "kubectl-kvpressure triage a b\n"), done.stderr
    (tmp_path / "bin" / "python3").unlink()
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "needs Python 3.11 to 3.13" in done.stderr
