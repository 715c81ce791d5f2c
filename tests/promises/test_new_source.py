"""A source that most do not have, with a series, a symptom and a detail of a cause, is registered by its own files."""

import json
import subprocess
import sys

import pytest

from tests.support.tools import FIXTURES

pytestmark = pytest.mark.process

FOLDER = FIXTURES / "new_source"

ADDED = f"""
import sys
from importlib import import_module

for package in ("model", "sources", "signals", "diagnosis.rules"):
    import_module("kvpressure." + package).__path__.append("{FOLDER}/" + package.rpartition(".")[2])

# The two lines of files that are there already: what the detail is, and what goes before its rule.
from kvpressure.diagnosis import precedence
from kvpressure.model.catalogue import CATALOGUE, Cause

CATALOGUE[Cause.COMPUTE_BOUND].details["power_capped"] = "the power of the rack is capped"
precedence.TABLE = (precedence.BY_ID["rack.capped"], *precedence.TABLE)

sys.path.append("{FOLDER}")
import verdict
"""


def test_what_a_new_source_brings_is_found_where_it_is_declared():
    """Two files that are there already name it: `diagnosis/precedence.py` and `model/catalogue.py` (decision 0600)."""
    command = [sys.executable, "-c", ADDED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "cause": "compute_bound",
        "detail": "power_capped",
        "grounds": "Time with capped power: 75%.",
        "symptom": True,
        "series": 0.75,
        "families": ["rack_power_capped_ratio"],
        "health": ["pdu-1"],
        "name": "power meters of racks",
    }
