"""`pip install` of the built wheel into a bare environment outside the tree, as a user does it; `make e2e-wheel`.

It asks a package index for what the wheel needs, so it is no part of `make test`; what it takes is printed.
"""

import json
import shutil
import signal
import subprocess
import sys
import time
import venv
from dataclasses import dataclass
from pathlib import Path

import pytest

from kvpressure import __version__
from kvpressure.cli import COMMANDS, JOINED
from tests.support.processes import Process, eventually, free_port, get, running
from tests.support.release import EPOCH, run_tool
from tests.support.tools import ROOT

pytestmark = pytest.mark.slow
MIB = 1024 * 1024


@dataclass(frozen=True)
class Installed:
    """Where it is, and what it took."""

    folder: Path
    wheel: Path
    seconds: float

    @property
    def site(self) -> Path:
        (found,) = self.folder.glob("lib/python3*/site-packages")
        return found

    def program(self, name: str) -> str:
        return str(self.folder / "bin" / name)

    def run(self, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        program, *rest = words
        environment = {"PATH": f"{self.folder / 'bin'}:/usr/bin:/bin", "HOME": str(cwd)}
        return subprocess.run(
            [self.program(program), *rest], cwd=cwd, env=environment, capture_output=True, text=True, check=False
        )


def size_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    outside = tmp_path_factory.mktemp("outside")
    assert ROOT not in outside.parents
    run_tool("dist", "--out", str(outside / "dist"), SOURCE_DATE_EPOCH=str(EPOCH))
    (wheel,) = (outside / "dist").glob("*.whl")
    venv.create(outside / "venv", with_pip=True, symlinks=True)
    began = time.monotonic()
    # `-I`: nothing of the environment that runs the tests, but for pip's own settings, which may name an index.
    words = [str(outside / "venv/bin/python"), "-I", "-m", "pip", "--disable-pip-version-check", "install", "-q"]
    done = subprocess.run([*words, str(wheel)], cwd=outside, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"pip could not install {wheel.name}:\n{done.stderr[-2000:]}"
    return Installed(outside / "venv", wheel, time.monotonic() - began)


def test_it_installs_and_says_what_it_took(installed: Installed, capsys: pytest.CaptureFixture[str]) -> None:
    packages = json.loads(installed.run("python", "-m", "pip", "list", "--format=json", cwd=installed.folder).stdout)
    names = {one["name"]: one["version"] for one in packages}
    assert names["kvpressure"] == __version__
    for tool in ("pytest", "hypothesis", "ruff", "mypy"):
        assert tool not in names
    with capsys.disabled():
        print(  # noqa: T201
            f"\npip install kvpressure: {installed.seconds:.0f} s; wheel"
            f" {installed.wheel.stat().st_size / MIB:.1f} MiB, installed with {len(names) - 2} others"
            f" {size_bytes(installed.site) / MIB:.0f} MiB (pip itself among them); Python {sys.version.split()[0]}"
        )


def test_nothing_it_needs_is_missing_or_at_odds(installed: Installed, tmp_path: Path) -> None:
    done = installed.run("python", "-m", "pip", "check", cwd=tmp_path)
    assert (done.returncode, done.stdout.strip()) == (0, "No broken requirements found.")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(installed: Installed, tmp_path: Path, name: str) -> None:
    done = installed.run("kvpressure", name, "--help", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"Usage: kvpressure {name} ")


def test_the_exporter_alone_lists_its_own_commands_and_says_where_the_others_are(
    installed: Installed, tmp_path: Path
) -> None:
    packages = sorted(set(JOINED.values()))
    for name in packages:
        shutil.move(installed.site / name, tmp_path / name)
    try:
        shown = installed.run("kvpressure", "--help", cwd=installed.folder)
        refused = {name: installed.run("kvpressure", name, cwd=installed.folder) for name in JOINED}
        checked = installed.run("kvpressure", "check-config", cwd=installed.folder)
    finally:
        for name in packages:
            shutil.move(tmp_path / name, installed.site / name)
    listed = [line.split()[0] for line in shown.stdout.partition("Commands:\n")[2].splitlines() if line.strip()]
    assert listed == [name for name in COMMANDS if name not in JOINED]
    for name, done in refused.items():
        said = f"Error: {name} is not installed here: pip install kvpressure\n"
        assert (done.returncode, done.stdout, done.stderr.endswith(said)) == (2, "", True), done.stderr
    assert checked.returncode == 0, checked.stderr


async def test_run_serves_metrics_and_ends_when_told(installed: Installed, tmp_path: Path) -> None:
    port = free_port()
    command = [installed.program("kvpressure"), "run", f"--web.listen-address=127.0.0.1:{port}"]
    async with running(command, tmp_path / "log", {"PYTHONPATH": "", "PYTHONUNBUFFERED": "1"}) as exporter:
        assert await _shown(port, exporter)
        assert await exporter.end(signal.SIGTERM) == 0
        assert "Traceback" not in exporter.output()


async def _shown(port: int, exporter: Process) -> bool:
    async def shown() -> bool:
        return f'version="{__version__}"' in await get(f"http://127.0.0.1:{port}/metrics")

    return bool(await eventually(shown, exporter))
