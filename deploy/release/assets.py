"""`python -m deploy.release.assets`: chart, bundle and mixin as archives, for those without a checkout to build in.

All are built for it, whatever lies in the checkout, and are the same bytes for the same sources and SOURCE_DATE_EPOCH.
"""

from __future__ import annotations

import argparse
import gzip
import io
import os
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path

from deploy.chart_files import CHART, chart_files
from deploy.mixin_files import mixin_files
from deploy.release.dist import ZIP_EPOCH

from kvpressure import __version__
from kvpressure.bundle import Options, bundle_files
from kvpressure.config.thresholds import load_thresholds

UNKNOWN_REPOSITORY = "OWNER/REPO"
"""Stands in Chart.yaml for the repository, which whoever publishes names."""


def archive(folder: str, files: Mapping[str, str], epoch: int) -> bytes:
    """Return a .tar.gz of `files` below `folder`, with nothing of when, where and by whom it was packed."""
    out = io.BytesIO()
    with (
        gzip.GzipFile(filename="", fileobj=out, mode="wb", mtime=epoch) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as made,
    ):
        for name, text in sorted(files.items()):
            content = text.encode()
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size, member.mtime = len(content), epoch
            made.addfile(member, io.BytesIO(content))
    return out.getvalue()


def whole_chart(repository: str) -> dict[str, str]:
    """Return the chart's own files, with the project's address, and those that are built: path below it to content."""
    own = (path.relative_to(CHART) for path in CHART.rglob("*") if path.is_file())
    kept = {str(path): (CHART / path).read_text("utf-8") for path in own if path.parts[0] != "files"}
    kept["Chart.yaml"] = kept["Chart.yaml"].replace(UNKNOWN_REPOSITORY, repository)
    return kept | chart_files()


def write(out: Path, epoch: int, repository: str = UNKNOWN_REPOSITORY) -> list[Path]:
    """Write them into `out`, which is made, and give their paths: the bundle first."""
    out.mkdir(parents=True, exist_ok=True)
    bundle, chart = out / f"kvpressure-bundle-{__version__}.tar.gz", out / f"kvpressure-{__version__}.tgz"
    bundle.write_bytes(archive("bundle", bundle_files(Options(load_thresholds())), epoch))
    chart.write_bytes(archive(CHART.name, whole_chart(repository), epoch))
    mixin = out / f"kvpressure-mixin-{__version__}.tar.gz"
    mixin.write_bytes(archive("mixin", mixin_files(load_thresholds()), epoch))
    return [bundle, chart, mixin]


def main(arguments: list[str] | None = None) -> int:
    """Write them, and print the paths."""
    parser = argparse.ArgumentParser(prog="python -m deploy.release.assets", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the folder to put them in")
    parser.add_argument("--repository", default=UNKNOWN_REPOSITORY, help="where the project is, as the forge names it")
    given = parser.parse_args(arguments)
    epoch = max(int(os.environ.get("SOURCE_DATE_EPOCH", ZIP_EPOCH)), ZIP_EPOCH)
    print(*write(given.out, epoch, given.repository), sep="\n")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
