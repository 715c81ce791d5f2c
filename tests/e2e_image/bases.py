"""Bases to build on: Debian's minimal system with a Python, trimmed as slim images are; kept as archives.

No registry of images is asked. `debian` has Debian's own Python under /usr; `usr-local` has a CPython built from source
under /usr/local, as the official image that the Dockerfile names.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.e2e_image.buildah import DOCKERFILE
from tests.e2e_image.programs import CACHE, FailedError, MissingError, output

LIBRARIES = (
    "ca-certificates libbz2-1.0 libexpat1 libffi8 liblzma5 libncursesw6 libreadline8 libsqlite3-0 libssl3 libuuid1"
    " netbase tzdata zlib1g"
)
"""What a CPython built from source links, and what the official image installs beside it."""

OWN_MOUNTS = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private")
"""debootstrap mounts /proc in the tree: nothing of that, and no process, outlives it, however it ends."""

_RECIPE = Path(__file__).read_text()
"""A base made by other code is another base."""

DOCUMENTS = ("usr/share/doc", "usr/share/man", "usr/share/info", "usr/share/locale", "usr/share/groff")
SLIM = (*DOCUMENTS, "usr/share/lintian", "usr/share/linda", "var/lib/apt/lists", "var/cache/apt", "var/cache/debconf")
"""Folders that slim images empty; copyright files stay."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A way for Python to lie in a base."""

    name: str
    packages: tuple[str, ...]
    python: Path | None = None
    """The installation that is copied under /usr/local."""

    @property
    def archive(self) -> Path:
        """Where the base is kept; another recipe is another file."""
        recipe = repr((self.packages, str(self.python), suite(), _RECIPE))
        return CACHE / f"base-{self.name}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}.tar"


def layouts() -> tuple[Layout, ...]:
    """Both. Raises MissingError where no CPython built from source is here."""
    return Layout("debian", ("python3-venv",)), Layout("usr-local", tuple(LIBRARIES.split()), built_python())


def suite() -> str:
    """Debian's release that the pinned base is made of."""
    return pinned()[1]


def pinned() -> tuple[str, str]:
    """Python's version and Debian's release, of the base that the Dockerfile names."""
    found = re.search(r"^ARG PYTHON_IMAGE=python:(3\.\d+)\S*-slim-(\w+)", DOCKERFILE.read_text(), re.MULTILINE)
    if found is None:
        raise FailedError("the Dockerfile's PYTHON_IMAGE is no python:3.N-slim-RELEASE any more")
    return found[1], found[2]


def built_python() -> Path:
    """The prefix of a CPython built from source: of the pinned version if there is one, else the newest."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    here = [path for path in pyenv.glob("3.1[123].*") if (path / "bin" / "python3").exists()]
    if sys.base_prefix not in ("/usr", "/usr/local"):
        here.append(Path(sys.base_prefix))
    if not here:
        raise MissingError(f"no CPython built from source: neither in {pyenv} nor the one that runs this")
    found = {_version(path): path for path in here}
    wanted = tuple(int(part) for part in pinned()[0].split("."))
    return found[max(found, key=lambda version: (version[:2] == wanted, version))]


def _version(prefix: Path) -> tuple[int, ...]:
    told = output((str(prefix / "bin" / "python3"), "-Ic", "import platform; print(platform.python_version())"))
    return tuple(int(part) for part in told.strip().split("."))


def make(layout: Layout, say: Callable[[str], None]) -> None:
    """Make the base unless it is kept already. Raises FailedError."""
    if layout.archive.exists():
        say(f"base {layout.name}: kept from an earlier run")
        return
    say(f"base {layout.name}: debootstrap of Debian {suite()} with {', '.join(layout.packages)}")
    for old in CACHE.glob(f"base-{layout.name}-*"):
        old.unlink() if old.is_file() else shutil.rmtree(old)
    tree, packages = CACHE / f"base-{layout.name}-tree", CACHE / "packages"
    packages.mkdir(parents=True, exist_ok=True)
    include = f"--include={','.join(layout.packages)}"
    fixed = ("debootstrap", "--variant=minbase", f"--cache-dir={packages}", include, suite(), str(tree))
    output((*OWN_MOUNTS, *fixed, *_mirror()))
    if layout.python is not None:
        _copy_python(layout.python, tree)
    _trim(tree)
    partial = layout.archive.with_suffix(".part")
    output(
        (
            "tar",
            "-C",
            str(tree),
            "--exclude=./proc/*",
            "--exclude=./sys/*",
            "--exclude=./dev/*",
            "-cf",
            str(partial),
            ".",
        )
    )
    partial.rename(layout.archive)
    shutil.rmtree(tree)


def _mirror() -> tuple[str, ...]:
    """The mirror that this machine's apt asks for this release; none where it has another distribution."""
    form = "$(CODENAME) $(ORIGIN) $(REPO_URI)"
    words = ("apt-get", "indextargets", "--format", form, "Created-By: Packages")
    told = subprocess.run(words, capture_output=True, text=True, check=False).stdout
    start = f"{suite()} Debian http"
    return tuple(line.split()[2] for line in sorted(told.splitlines()) if line.startswith(start))[:1]


def _copy_python(prefix: Path, tree: Path) -> None:
    """Put an installation under /usr/local, without what the official image removes from its own."""
    ignored = shutil.ignore_patterns("__pycache__", "test", "tests", "idle_test", "*.a", "config-3*", "site-packages")
    for name in ("bin", "lib"):
        shutil.copytree(prefix / name, tree / "usr/local" / name, symlinks=True, ignore=ignored, dirs_exist_ok=True)
    for program in (tree / "usr/local/bin").iterdir():
        if not re.fullmatch(r"python(3(\.\d+)?)?", program.name):
            program.unlink()
    for library in (tree / "usr/local").rglob("*.so*"):
        if not library.is_symlink():
            output(("strip", "--strip-unneeded", str(library)))
    for site in (tree / "usr/local/lib").glob("python3.*"):
        (site / "site-packages").mkdir()
    output(("chroot", str(tree), "ldconfig"))


def _trim(tree: Path) -> None:
    """Remove what slim images leave out."""
    for folder in SLIM:
        for path in sorted((tree / folder).rglob("*"), reverse=True):
            if path.is_dir() and not path.is_symlink():
                if not any(path.iterdir()):
                    path.rmdir()
            elif path.name != "copyright":
                path.unlink()
    for log in (tree / "var/log").glob("*.log"):
        log.unlink()
