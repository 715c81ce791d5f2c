"""`python -m deploy.release.dist`: the wheel and the source archive, the same bytes for the same commit.

They are built from a copy of what git tracks, so that nothing that merely lies about gets in; every time in them is
SOURCE_DATE_EPOCH's.
"""

from __future__ import annotations

import argparse
import gzip
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
# A zip file, and so a wheel, knows no time before this.
ZIP_EPOCH = 315532800


def sources(root: Path) -> list[str]:
    """Every file of the project, relative to `root`: what git tracks, or without git what no tool leaves behind."""
    # The checkout of a build in a container often belongs to somebody else.
    words = ["git", "-c", "safe.directory=*", "-C", str(root), "ls-files", "-z"]
    listed = subprocess.run(words, capture_output=True, check=False) if (root / ".git").exists() else None  # noqa: S603
    if listed is not None and listed.returncode == 0:
        names = [name for name in os.fsdecode(listed.stdout).split("\0") if name]
        return sorted(name for name in names if (root / name).exists())
    found = (path.relative_to(root) for path in root.rglob("*") if not path.is_dir() or path.is_symlink())
    return sorted(str(path) for path in found if not any(_left_behind(part) for part in path.parts))


def _left_behind(part: str) -> bool:
    return part in ("__pycache__", "build", "dist") or part.startswith(".") or part.endswith(".egg-info")


def copy_sources(root: Path, to: Path) -> None:
    """Copy the project as it lies below `root`; links stay links."""
    for name in sources(root):
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / name, to / name, follow_symlinks=False)


def repacked(archive: bytes, epoch: int) -> bytes:
    """Return a .tar.gz with the same files and nothing of when, where and by whom it was packed."""
    out = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as old,
        gzip.GzipFile(filename="", fileobj=out, mode="wb", mtime=epoch) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in sorted(old.getmembers(), key=lambda member: member.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = epoch, 0, 0, "", ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            member.pax_headers = {}
            new.addfile(member, old.extractfile(member) if member.isreg() else None)
    return out.getvalue()


def build(root: Path, out: Path, epoch: int) -> list[Path]:
    """Build both into `out`, which is made, and give their paths: the wheel first.

    Raises CalledProcessError with what was printed if they cannot be built.
    """
    out.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch), "PYTHONDONTWRITEBYTECODE": "1"}
    with tempfile.TemporaryDirectory() as folder:
        tree, made = Path(folder) / "tree", Path(folder) / "made"
        copy_sources(root, tree)
        # The wheel is built from the source archive: what can be built from that is what others can build.
        words = [sys.executable, "-m", "build", "--quiet", "--no-isolation", f"--outdir={made}", str(tree)]
        # What modes files get is not left to the umask of whoever builds.
        subprocess.run(words, check=True, env=environment, umask=0o022)  # noqa: S603
        (wheel,), (source,) = made.glob("*.whl"), made.glob("*.tar.gz")
        shutil.copy(wheel, out / wheel.name)
        (out / source.name).write_bytes(repacked(source.read_bytes(), epoch))
    return [out / wheel.name, out / source.name]


def main(arguments: list[str] | None = None) -> int:
    """Build, and print the paths."""
    parser = argparse.ArgumentParser(prog="python -m deploy.release.dist", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the folder to put them in")
    given = parser.parse_args(arguments)
    epoch = max(int(os.environ.get("SOURCE_DATE_EPOCH", ZIP_EPOCH)), ZIP_EPOCH)
    print(*build(ROOT, given.out, epoch), sep="\n")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
