"""Writes the dashboards' templates before they are packed: they are built and not in git (decision 0060).

A source archive has them already, and has no builders.
"""

import sys
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).resolve().parent

if (ROOT / "dashboards" / "__main__.py").exists():
    sys.path[:0] = [str(ROOT), str(ROOT / "exporter")]
    from dashboards.__main__ import main

    main()

setup()
