"""`python -m tests.lab.written VERSION FOLDER < REGIMES`: regimes that are in no file, run and recorded there.

Each is a line of JSON: `name`, `table` (what a regime's file would say) and `folder` (below FOLDER). A process has one
clock and one version of vLLM.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

from tests.lab.fetch import package
from tests.lab.record import write
from tests.lab.regime import parse
from tests.lab.worker import prepare


def main() -> int:
    """Record all, one after the other."""
    version, folder = sys.argv[1], Path(sys.argv[2])
    clock = prepare(package(version))
    from tests.lab.clock import BEGIN  # noqa: PLC0415 - vLLM's names come after the stand-ins
    from tests.lab.server import Server  # noqa: PLC0415

    for line in sys.stdin:
        wish = json.loads(line)
        regime = replace(parse(wish["name"], {"about": "-", "expect": "-", **wish["table"]}), expect="")
        clock.now = BEGIN
        server = Server(regime, package(version), version, clock)
        write(regime, version, server.book, server.run(), folder / wish["folder"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
