"""What `make bundle` and `make chart` build, made once for a run of the tests from the sources as they are now.

None of it is in git, and what lies in a checkout may be of yesterday: tests look at these.
"""

import atexit
import functools
import shutil
import tempfile
from pathlib import Path

from deploy.chart_files import CHART, build

from kvpressure.bundle import Options, bundle_files, write_bundle
from kvpressure.bundle.options import VLLM_ONLY
from kvpressure.config.thresholds import load_thresholds
from kvpressure.exposition.profile import Profile

ROOT = Path(__file__).parents[2]


@functools.cache
def _checkout() -> Path:
    """A folder with as much of a checkout as the built files are looked for from; it goes with the process."""
    held = tempfile.TemporaryDirectory(prefix="kvpressure-built-")
    atexit.register(held.cleanup)
    return Path(held.name)


@functools.cache
def bundle(profile: Profile = Profile.FULL) -> Path:
    """The bundle, as `kvpressure generate --all-alerts` writes it for a profile, with the packaged thresholds."""
    place = _checkout() / "build" / ("bundle" if profile is Profile.FULL else f"bundle-{profile.value}")
    write_bundle(place, bundle_files(Options(load_thresholds(), all_alerts=True, profile=profile)))
    return place


@functools.cache
def rule_tests() -> Path:
    """rules/tests, where the paths in them lead to the bundle."""
    bundle()
    return shutil.copytree(ROOT / "rules" / "tests", _checkout() / "rules" / "tests")


@functools.cache
def chart() -> Path:
    """The chart with its rules and dashboards."""
    place = shutil.copytree(CHART, _checkout() / "chart" / CHART.name, ignore=shutil.ignore_patterns("files"))
    build(place)
    return place


@functools.cache
def vllm_only() -> Path:
    """The bundle of `kvpressure generate --flavour vllm-only` with the packaged thresholds."""
    place = _checkout() / "build" / "vllm-only"
    write_bundle(place, bundle_files(Options(load_thresholds(), selector="", flavour=VLLM_ONLY)))
    return place


@functools.cache
def vllm_only_tests() -> Path:
    """rules/vllm-only/tests, where the paths in them lead to that bundle."""
    vllm_only()
    return shutil.copytree(ROOT / "rules" / "vllm-only" / "tests", _checkout() / "rules" / "vllm-only" / "tests")
