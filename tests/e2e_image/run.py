"""One run, for one base: the image is looked into, run, asked and ended."""

import asyncio
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.e2e_image import contents
from tests.e2e_image.buildah import Buildah
from tests.e2e_image.container import USER, Container, container
from tests.e2e_image.engine import CAUSE, NAME, engine, write_settings
from tests.e2e_image.programs import ROOT, output
from tests.e2e_kubernetes.exporter import answers
from tests.e2e_kubernetes.report import Timeline
from tests.support.processes import get

IMAGE = "localhost/kvpressure:e2e"
BASE = "localhost/python:e2e"
URL = "http://127.0.0.1:10405"
MB = 1_000_000
MAX_MB = 250
MAX_ENDING_SECONDS = 2.0
SETTLED_SECONDS = 120.0
NO_TOOLS = ("pip", "setuptools", "wheel", "pkg_resources", "_distutils_hack")


async def tell(line: Timeline, buildah: Buildah, wheel: Path, python: str) -> None:
    """Everything that has to be so of an image that was built, with this Python in its base."""
    image = buildah.config(IMAGE)
    working = buildah("from", "--pull-never", IMAGE)
    root = Path(buildah("mount", working))
    _configured(line, image)
    _filled(line, root, wheel, python)
    _weighed(line, root)
    buildah("umount", working)
    folder = buildah.folder / "told"
    folder.mkdir(mode=0o755)
    async with engine() as url:
        write_settings(folder / "config", url)
        await _runs(line, buildah, (working, image), folder)


def _configured(line: Timeline, image: Mapping[str, Any]) -> None:
    line.hold("its user is a number", image["User"] == USER, image["User"])
    line.hold("it keeps the health check (--format docker)", image.get("Healthcheck", {}).get("Test"), image)
    named = image["Labels"]["org.opencontainers.image.base.name"]
    line.hold("its label names the base", named == BASE, named)


def _filled(line: Timeline, root: Path, wheel: Path, python: str) -> None:
    site = contents.site_packages(root)
    tag = f"cpython-{site.parent.name.removeprefix('python').replace('.', '')}"
    link = (root / contents.VENV / "bin" / "python3").readlink()
    line.hold(f"its Python is {python}, {site.parent.name}", str(link) == python, link)
    recorded = contents.wheel_record(wheel)
    for what, names in contents.differences(site, recorded, tag).items():
        line.hold(f"no file of the package is {what}, of {len(recorded)} in the wheel's RECORD", not names, names[:9])
    extra, missing = contents.unaccounted(site, tag)
    line.hold("every other file is one that a distribution lists, or its bytecode", not extra, extra[:9])
    line.hold("every file that a distribution lists is there", not missing, missing[:9])
    pins = re.findall(r"^([\w.-]+)==", (ROOT / "requirements/runtime.txt").read_text(), re.MULTILINE)
    wanted = {re.sub(r"[-_.]+", "_", pin).lower() for pin in (*pins, "kvpressure")}
    found = set(contents.distributions(site))
    line.hold(f"installed are the {len(wanted)} that are pinned, no others", found == wanted, found ^ wanted)
    tools = [name for name in NO_TOOLS if list(site.glob(f"{name}*"))]
    line.hold("its environment has no pip and no setuptools", not tools, tools)
    left = sorted(path.name for path in root.iterdir() if path.name in ("src", "build", ".git", "work"))
    line.hold("nothing of the build is left beside it", not left, left)


def _weighed(line: Timeline, root: Path) -> None:
    whole, ours = contents.size_bytes(root), contents.size_bytes(root / contents.VENV)
    line.note(f"base {(whole - ours) / MB:.0f} MB, ours {ours / MB:.0f} MB: bytes of files, each once, uncompressed")
    for title, at, depth in (("ours", contents.site_packages(root), 1), ("image", root, 3)):
        rows = contents.largest(at, depth, 10)
        line.note(f"largest of {title}, MB: " + ", ".join(f"{name} {count / MB:.1f}" for name, count in rows))
    line.hold(f"it has at most {MAX_MB} MB, its base included: {whole / MB:.0f}", whole <= MAX_MB * MB)


async def _runs(line: Timeline, buildah: Buildah, made: tuple[str, Any], folder: Path) -> None:
    working, image = made
    log = folder / "exporter.log"
    health = [*buildah.words("run", "--isolation", "chroot", "--user", USER), buildah("from", "--pull-never", IMAGE)]
    health += ["--", *image["Healthcheck"]["Test"][1:]]
    async with container(buildah, working, image, folder / "config", log) as running:
        await line.see("/-/ready answers 200", lambda: asyncio.to_thread(answers, f"{URL}/-/ready"), needed=True)
        _confined(line, running)
        await line.see(f"kvpressure_bottleneck says {CAUSE} of the engine", _judged, within=SETTLED_SECONDS)
        await line.see("kvpressure_source_up is 1 for the engine", _source_up)
        done = await asyncio.create_subprocess_exec(*health)
        line.hold("the health check passes", await done.wait() == 0)
        seconds, code = await running.end()
        line.hold(f"SIGTERM ends it within {MAX_ENDING_SECONDS:.0f} s: {seconds:.2f}", seconds <= MAX_ENDING_SECONDS)
        line.hold("with exit code 0", code == 0, code)
        line.hold("without a traceback in its log", "Traceback" not in log.read_text(), log.read_text()[-2000:])
        done = await asyncio.create_subprocess_exec(*health, stderr=asyncio.subprocess.DEVNULL)
        line.hold("then the health check fails", await done.wait() != 0)


def _confined(line: Timeline, running: Container) -> None:
    status, uid = running.status(), USER.partition(":")[0]
    line.hold("it is the entrypoint, and no shell", "kvpressure" in running.command()[1], running.command())
    line.hold("as uid and gid 65532", {*status["Uid"].split(), *status["Gid"].split()} == {uid}, status["Uid"])
    sets = {status[key] for key in ("CapPrm", "CapEff", "CapInh", "CapAmb")}
    line.hold("without any capability", sets == {"0" * 16}, sets)
    line.hold("without new privileges, under a seccomp filter", (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2"))
    line.hold("its root is mounted read-only", "ro" in running.root_options(), running.root_options())
    for place in ("/tmp", "/opt/kvpressure", "/var/tmp", "/etc/kvpressure"):
        line.hold(f"it cannot write to {place}", not _may_write(running.pid, place))
    line.note(f"not shown by this isolation: process 1, an empty bounding set (here {status['CapBnd']}), cgroups")


def _may_write(pid: int, place: str) -> bool:
    """Whether a file can be made there, with the process's own root, user and mounts."""
    user, group = USER.split(":")
    words = ["nsenter", f"--target={pid}", "--mount", "--root", f"--setuid={user}", f"--setgid={group}"]
    try:
        output((*words, "touch", f"{place}/written"))
    except Exception as error:
        if re.search(r"Read-only file system|Permission denied", str(error)):
            return False
        raise
    return True


async def _judged() -> bool:
    found = await _samples("kvpressure_bottleneck")
    return [labels for labels, value in found if value == 1 and labels["cause"] == CAUSE] != []


async def _source_up() -> bool:
    found = await _samples("kvpressure_source_up")
    return [value for labels, value in found if labels["source"] == "engine" and NAME in labels.values()] == [1]


async def _samples(name: str) -> list[tuple[Mapping[str, str], float]]:
    families = text_string_to_metric_families(await get(f"{URL}/metrics"))
    return [(one.labels, one.value) for family in families for one in family.samples if one.name == name]


def alone() -> None:
    """Bring loopback up: the network of a run is its own, so port 10405 is free and nothing else can be reached."""
    os.umask(0o022)
    output(("ip", "link", "set", "lo", "up"))
