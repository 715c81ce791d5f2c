"""`python -m deploy.release.audit`: ask for known vulnerabilities of every pinned package, and store the answer.

pip-audit asks its vulnerability service, which needs the internet. Where the service does not answer for a package,
pip-audit says "No known vulnerabilities found" and ends with 0; here that package is counted as not audited, and with
--strict the run fails. requirements/audit.json holds the last answer and the hashes of the files it is about.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

REQUIREMENTS = Path(__file__).parents[2] / "requirements"
STORED = REQUIREMENTS / "audit.json"
TIMEOUT_SECONDS = 300
Json = dict[str, Any]


def hashes(folder: Path = REQUIREMENTS) -> dict[str, str]:
    """SHA-256 of every compiled requirements file, by its name."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.glob("*.txt"))}


def asked(path: Path) -> list[Json]:
    """Return what pip-audit says of each package in a file.

    Raises RuntimeError with its own words where it does not get as far as an answer.
    """
    command = [sys.executable, "-m", "pip_audit", "--disable-pip", "--require-hashes", "--progress-spinner=off"]
    # Our own interpreter, and a file of this project.
    done = subprocess.run(  # noqa: S603
        [*command, "--format=json", f"--requirement={path}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_SECONDS,
    )
    try:
        found: list[Json] = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError) as error:
        raise RuntimeError(f"pip-audit gave no answer for {path.name}: {done.stderr.strip()[-400:]}") from error
    return found


def summary(answers: dict[str, list[Json]], *, date: str, tool: str, requirements: dict[str, str]) -> Json:
    """Return the result that is stored.

    `answers`: pip-audit's `dependencies` of each file; one in several counts once.
    """
    packages = {(one["name"], one.get("version", "")): one for file in answers.values() for one in file}
    found = [
        {"package": name, "version": number, "id": problem["id"], "fixed_in": problem["fix_versions"]}
        for (name, number), one in sorted(packages.items())
        for problem in one.get("vulns", [])
    ]
    skipped = sorted({one["name"] for one in packages.values() if "skip_reason" in one})
    return {
        "date": date,
        "tool": tool,
        "requirements": requirements,
        "audited": len({name for name, _ in packages}) - len(skipped),
        "not_audited": skipped,
        "vulnerabilities": found,
    }


def keeps(stored: Json | None, new: Json) -> bool:
    """Whether the stored result says more than the new one about the same files, and is to stay."""
    if stored is None or stored["requirements"] != new["requirements"]:
        return False
    return bool(stored["audited"] > new["audited"])


def verdict(result: Json, *, strict: bool) -> tuple[int, str]:
    """Exit code and a sentence: 1 for a vulnerability, 2 with `strict` where a package could not be audited."""
    bad, skipped = result["vulnerabilities"], result["not_audited"]
    if bad:
        lines = [f"{one['package']} {one['version']}: {one['id']}, fixed in {one['fixed_in'] or 'none'}" for one in bad]
        return 1, "\n".join(lines)
    if skipped:
        words = f"{len(skipped)} packages could not be audited: the vulnerability service did not answer for them"
        return (2 if strict else 0), f"{words}; {result['audited']} were"
    return 0, f"{result['audited']} packages audited, no known vulnerability"


def main(arguments: list[str] | None = None) -> int:
    """Ask, store, and say it."""
    parser = argparse.ArgumentParser(prog="python -m deploy.release.audit", description=__doc__)
    parser.add_argument("--strict", action="store_true", help="fail where a package could not be audited")
    given = parser.parse_args(arguments)
    files = hashes()
    try:
        answers = {name: asked(REQUIREMENTS / name) for name in files}
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 2
    today = datetime.now(UTC).date().isoformat()
    result = summary(answers, date=today, tool=f"pip-audit {version('pip-audit')}", requirements=files)
    stored = json.loads(STORED.read_text()) if STORED.exists() else None
    if not keeps(stored, result):
        STORED.write_text(json.dumps(result, indent=2) + "\n")
    code, words = verdict(result, strict=given.strict)
    print(words)  # noqa: T201
    return code


if __name__ == "__main__":
    sys.exit(main())
