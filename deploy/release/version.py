"""`python -m deploy.release.version`: one version everywhere, driven by CHANGELOG.md.

The newest section of CHANGELOG.md says which version this is: `## Unreleased (X.Y.Z)` while it is being made, `## X.Y.Z
(YYYY-MM-DD)` once it is released. Everything else that names the version must say the same; `--tag vX.Y.Z` also asks
that the section is that of a release, and `--notes` writes what stands in it.
"""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
CHANGELOG: Final = "CHANGELOG.md"
_NUMBER: Final = r"\d+\.\d+\.\d+"
_HEADING: Final = re.compile(
    rf"## (?:Unreleased \((?P<next>{_NUMBER})\)|(?P<released>{_NUMBER}) \(\d{{4}}-\d\d-\d\d\))"
)
NAMED: Final = {
    "pyproject.toml": r'^version = "(.*)"$',
    "exporter/kvpressure/__init__.py": r'^__version__ = "(.*)"$',
    "deploy/helm/kvpressure/Chart.yaml": r"^(?:version|appVersion): (.*)$",
    "deploy/manifests/kustomization.yaml": r"^ +newTag: (.*)$",
    "deploy/compose/compose.yaml": r"^ +image: kvpressure:(.*)$",
}
"""Where the version stands, and the pattern whose first group is it; every match counts."""


@dataclass(frozen=True, slots=True)
class Section:
    """The newest section of the changelog: its version, whether it is released, and what stands in it."""

    version: str
    released: bool
    text: str


def newest(changelog: str) -> Section:
    """Read it. Raises ValueError where the first section's heading is not one of the two forms."""
    headings = [(at, line) for at, line in enumerate(changelog.splitlines()) if line.startswith("## ")]
    found = _HEADING.fullmatch(headings[0][1]) if headings else None
    if found is None:
        heading = repr(headings[0][1]) if headings else "missing"
        forms = "`## Unreleased (X.Y.Z)` or `## X.Y.Z (YYYY-MM-DD)`"
        raise ValueError(f"{CHANGELOG}: the first section must be {forms}, and is {heading}")
    end = headings[1][0] if len(headings) > 1 else None
    text = "\n".join(changelog.splitlines()[headings[0][0] + 1 : end]).strip()
    return Section(found["next"] or found["released"], found["released"] is not None, text + "\n")


def problems(root: Path, tag: str | None) -> list[str]:
    """Return a sentence for everything that does not agree with the changelog.

    `tag` is that of a release, with its v.
    """
    try:
        section = newest((root / CHANGELOG).read_text("utf-8"))
    except ValueError as error:
        return [str(error)]
    found = []
    for name, pattern in NAMED.items():
        versions = re.findall(pattern, (root / name).read_text("utf-8"), re.MULTILINE)
        if not versions:
            found.append(f"{name}: no version where one is looked for ({pattern})")
        found += [f"{name} says {v}, {CHANGELOG} says {section.version}" for v in versions if v != section.version]
    if tag is not None and tag != f"v{section.version}":
        found.append(f"the tag is {tag}, {CHANGELOG} says {section.version}")
    if tag is not None and not section.released:
        found.append(f"{CHANGELOG}: {section.version} is still under Unreleased: write `## {section.version} (DATE)`")
    return found


def main(arguments: list[str] | None = None) -> int:
    """Print the version, or every disagreement and end with 1."""
    parser = argparse.ArgumentParser(prog="python -m deploy.release.version", description=__doc__)
    parser.add_argument("--tag", help="the tag of a release, vX.Y.Z")
    parser.add_argument("--notes", type=Path, help="file to write the newest section of the changelog into")
    given = parser.parse_args(arguments)
    if found := problems(ROOT, given.tag):
        print(*found, sep="\n", file=sys.stderr)  # noqa: T201
        return 1
    section = newest((ROOT / CHANGELOG).read_text("utf-8"))
    if given.notes:
        given.notes.write_text(section.text, "utf-8")
    print(section.version)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
