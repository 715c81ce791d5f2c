"""Files that a kubeconfig names: certificates, keys and tokens. Whoever wrote it may have named one without an end."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Final

from kvpressure.kubernetes.errors import KubeError

LARGEST_BYTES: Final = 1 << 20
"""Many times what a bundle of certificates takes."""


def read_named(path: Path) -> bytes:
    """Return the content of a regular file of at most a megabyte. Raises KubeError."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for ever
            raise OSError(0, "it is not a regular file")
        with path.open("rb") as file:
            content = file.read(LARGEST_BYTES + 1)
        if len(content) > LARGEST_BYTES:
            raise OSError(0, f"it is larger than {LARGEST_BYTES >> 20} MiB")
    except OSError as error:
        raise KubeError(f"cannot read {path}, which the kubeconfig names: {error.strerror}") from error
    except ValueError as error:  # a null byte, or half of a surrogate pair
        raise KubeError(f"cannot read a file that the kubeconfig names: {str(path)!r:.80} is no path") from error
    return content
