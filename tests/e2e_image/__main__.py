"""The whole run; exit code 1 when something is not as it must be, 2 without a run."""

import argparse
import asyncio
import os
import shutil
import subprocess
import sys
import time

from tests.e2e_image import settings_of_pip
from tests.e2e_image.bases import Layout, layouts, make
from tests.e2e_image.buildah import Buildah
from tests.e2e_image.programs import CACHE, LONGEST_SECONDS, ROOT, FailedError, MissingError, check
from tests.e2e_image.run import BASE, IMAGE, alone, tell
from tests.e2e_kubernetes.__main__ import ISOLATED
from tests.e2e_kubernetes.report import AbandonedError, Timeline
from tests.support.release import EPOCH, run_tool

RUN = CACHE / "run"
PYTHONS = {"debian": "/usr/bin/python3", "usr-local": "/usr/local/bin/python3"}


def main() -> int:
    """Build and run the image on each base; what a run made is removed however it ends."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e_image", description=__doc__)
    parser.add_argument("--inside", choices=PYTHONS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inside:
        return _inside(given.inside)
    try:
        if os.geteuid() != 0:
            raise MissingError("this needs root: debootstrap, mounts, and another user for the exporter")
        check()
        both = layouts()
        _remove()
        RUN.mkdir(parents=True)
        run_tool("dist", "--out", str(RUN / "dist"), SOURCE_DATE_EPOCH=str(EPOCH))
        return max([_built_and_told(layout) for layout in both])
    except MissingError as error:
        _say(f"{error}")
        return 2
    except FailedError as error:
        _say(f"{error}")
        return 1
    except KeyboardInterrupt:
        _say("interrupted")
        return 130
    finally:
        _remove()


def _built_and_told(layout: Layout) -> int:
    began = time.monotonic()
    make(layout, _say)
    buildah = Buildah(RUN / layout.name)
    buildah.folder.mkdir()
    buildah.load(layout.archive, BASE)
    ready = time.monotonic()
    printed = buildah.build(
        BASE, IMAGE, tuple(settings_of_pip.volumes(buildah.folder, settings_of_pip.of_this_machine()))
    )
    (CACHE / f"build-{layout.name}.log").write_text(printed)
    built = time.monotonic()
    _say(f"\nOn base {layout.name}: base ready in {ready - began:.0f} s, image built in {built - ready:.0f} s")
    command = (*ISOLATED, sys.executable, "-m", "tests.e2e_image", "--inside", layout.name)
    code = subprocess.run(command, cwd=ROOT, check=False, timeout=LONGEST_SECONDS).returncode
    _say(f"told in {time.monotonic() - built:.0f} s")
    buildah.remove()
    return 1 if code else 0


def _inside(name: str) -> int:
    """In namespaces of our own."""
    alone()
    (wheel,) = (RUN / "dist").glob("*.whl")
    with (CACHE / f"report-{name}.txt").open("w") as file:
        line = Timeline(file)
        try:
            asyncio.run(tell(line, Buildah(RUN / name), wheel, PYTHONS[name]))
        except (AbandonedError, FailedError) as error:
            line.failed.append(str(error))
            for log in sorted((RUN / name / "told").glob("*.log")):
                line.note(log.read_text()[-3000:])
        line.chapter(f"{line.passed} as they must be, {len(line.failed)} not")
        for what in line.failed:
            line.note(f"not so: {what}")
    return 1 if line.failed else 0


def _remove() -> None:
    for folder in sorted(RUN.iterdir()) if RUN.exists() else ():
        if (folder / "storage").exists():
            Buildah(folder).remove()
    shutil.rmtree(RUN, ignore_errors=True)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
