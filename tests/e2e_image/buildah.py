"""buildah with a storage of its own, so that ending a run is removing one folder."""

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.e2e_image.programs import ROOT, output

DOCKERFILE = ROOT / "deploy" / "docker" / "Dockerfile"
PATHS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""What the official Python images and every engine have as PATH; an imported tree has none."""


class Buildah:
    """Images and containers below `folder`, and nowhere else."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._words = ("buildah", "--root", str(folder / "storage"), "--runroot", str(folder / "run"))

    def words(self, *words: str) -> tuple[str, ...]:
        """A command line with this storage."""
        return (*self._words, "--storage-driver", "overlay", *words)

    def __call__(self, *words: str) -> str:
        """Output of a buildah command. Raises FailedError."""
        return output(self.words(*words), {**os.environ, "BUILDAH_ISOLATION": "chroot"}).strip()

    def load(self, archive: Path, name: str) -> None:
        """Make an image of one layer from a file tree."""
        made = self("from", "scratch")
        self("add", "-q", made, str(archive), "/")
        self("config", "--env", f"PATH={PATHS}", made)
        self("commit", "-q", "--rm", made, name)

    def build(self, base: str, name: str, more: Sequence[str] = ()) -> str:
        """Build the Dockerfile on an image that is here; gives what was printed.

        `--format docker`: an OCI image cannot hold the HEALTHCHECK. `--pull-never`: no registry is asked.
        """
        words = ("build", "--format", "docker", "--pull-never", "--network", "host", "--layers=false")
        ignore = ("--ignorefile", str(DOCKERFILE.with_name("Dockerfile.dockerignore")))
        chosen = ("--build-arg", f"PYTHON_IMAGE={base}", "-f", str(DOCKERFILE), "-t", name)
        return self(*words, *ignore, *more, *chosen, str(ROOT))

    def config(self, name: str) -> Any:
        """The image's configuration, as an engine reads it."""
        return json.loads(self("inspect", "--type", "image", name))["Docker"]["config"]

    def remove(self) -> None:
        """Remove every container, image, mount and file of this storage."""
        if self.folder.exists():
            self("umount", "--all")
            self("rm", "--all")
            self("rmi", "--all", "--force")
            overlay = self.folder / "storage" / "overlay"
            if overlay.is_mount():
                output(("umount", str(overlay)))
            shutil.rmtree(self.folder)
