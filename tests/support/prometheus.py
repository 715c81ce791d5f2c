"""A Prometheus that was just started."""

import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

from tests.support.processes import PATIENCE_SECONDS


def wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Until it answers at `url`. RuntimeError with its last words, from `log`, when it ends or does not."""
    until = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/-/ready", timeout=1):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise RuntimeError(f"prometheus did not become ready: {log.read_text()[-500:]}")
