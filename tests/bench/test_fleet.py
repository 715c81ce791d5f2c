"""The bench of fleets loads the rules of either profile's bundle."""

from __future__ import annotations

import pytest

from bench.fleet.__main__ import configuration
from kvpressure.exposition.profile import Profile
from tests.support import built


@pytest.mark.parametrize("profile", list(Profile))
def test_every_rule_file_of_the_profiles_bundle_is_loaded(profile: Profile) -> None:
    files = configuration(9, 1, profile)["rule_files"]
    assert files == [str(path) for path in sorted(built.bundle(profile).glob("prometheus/*/*.yaml"))]
