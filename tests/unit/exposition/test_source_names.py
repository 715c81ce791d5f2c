"""What people call the sources."""

from __future__ import annotations

import re
from pathlib import Path

import kvpressure
from kvpressure.exposition.source_names import NAMES, source_name

PACKAGE = Path(kvpressure.__file__).parent
DECLARED = re.compile(r'^(?:[A-Z]+_)?(?:SOURCE|PODS|EVENTS|MAPS|NODE)(?:: Final)? = "([a-z_]+)"$', re.MULTILINE)


def test_every_source_has_a_name_that_is_not_its_label():
    declared = {name for path in PACKAGE.rglob("*.py") for name in DECLARED.findall(path.read_text())}
    assert {"engine", "port_owner", "kubernetes_pods", "host"} <= declared
    assert declared <= NAMES.keys()
    assert all("_" not in name.replace("file_sd", "") for name in NAMES.values())


def test_one_that_nobody_named_keeps_its_own():
    assert source_name("a_new_one") == "a_new_one"
