"""Writes the dashboards' templates before they are packed: they are built and not in git (decision 0060).

A source archive has them already, and has no builders.
"""

import sys
from pathlib import Path

if sys.version_info < (3, 11):  # noqa: UP036 - before what only newer Pythons have is missed
    sys.exit("kvpressure needs Python 3.11 or newer, this is {}.{}".format(*sys.version_info))

from setuptools import setup

ROOT = Path(__file__).resolve().parent

if (ROOT / "dashboards" / "__main__.py").exists():
    sys.path[:0] = [str(ROOT), str(ROOT / "exporter")]
    from dashboards.__main__ import main

    main()

setup()
