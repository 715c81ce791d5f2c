"""What end-to-end runs with other servers have in common: pages, causes, and checks that say what they missed."""

import contextlib
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path


def get(port: int, path: str) -> bytes:
    """Return the body of a page on this machine."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        body: bytes = answer.read()
        return body


def wait_for(what: str, there: Callable[[], bool], seconds: float, logs: Path) -> None:
    """Wait until it is there; end the run where it does not come."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with contextlib.suppress(OSError):
            if there():
                return
        time.sleep(1)
    sys.exit(f"{what} did not come up in {seconds:.0f} s; its log is in {logs}")


def check(what: str, wanted: str, text: str) -> bool:
    """Say whether `text` has what was wanted, and show it where it has not."""
    sys.stdout.write(f"{'ok    ' if wanted in text else 'MISSED'} {what}\n")
    if wanted not in text:
        sys.stdout.write(f"       no {wanted!r} in:\n{text[:2000]}\n")
    return wanted in text


def causes(text: str) -> str:
    """Return the lines of an exporter's page that name a cause."""
    lines = text.splitlines()
    return "\n".join(one for one in lines if one.startswith("kvpressure_bottleneck{") and one.endswith(" 1.0"))
