"""The workflows that test and release: what they run is pinned, and they may do no more than they need."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.y*ml"))
# owner/name at a whole commit, and behind it the tag that it was when it was pinned.
PINNED = re.compile(r"[\w-]+/[\w./-]+@[0-9a-f]{40} # v\d+(\.\d+)*")
MAY_WRITE = {
    ("release.yml", "attest"): {"id-token", "attestations"},
    ("release.yml", "image"): {"packages", "id-token", "attestations"},
    ("release.yml", "chart"): {"packages", "id-token"},
    ("release.yml", "release"): {"contents"},
}
each_workflow = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text())
    return found


def steps(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, job in read(path)["jobs"].items():
        for step in job["steps"]:
            yield name, step


def unpinned(text: str) -> list[str]:
    found = re.findall(r"^[\s-]*uses:\s*(.+)$", text, re.MULTILINE)
    return [words for words in found if not PINNED.fullmatch(words)]


@each_workflow
def test_every_action_is_pinned_by_its_whole_commit(path: Path) -> None:
    assert unpinned(path.read_text()) == []
    assert all(step["uses"].count("@") == 1 for _, step in steps(path) if "uses" in step)


@pytest.mark.parametrize(
    "words", ["actions/checkout@v6", f"actions/checkout@{'a' * 39} # v6", f"actions/checkout@{'a' * 40}", "./local"]
)
def test_an_action_that_is_not_pinned_would_be_noticed(words: str) -> None:
    assert unpinned(f"      - uses: {words}\n") == [words]


def test_one_action_is_at_one_commit_everywhere() -> None:
    pins = {words for path in WORKFLOWS for words in re.findall(r"uses: (.+)", path.read_text())}
    assert len({words.partition("@")[0] for words in pins}) == len(pins)


@each_workflow
def test_no_job_may_write_what_it_does_not_need(path: Path) -> None:
    assert read(path)["permissions"] == {}
    for name, job in read(path)["jobs"].items():
        writes = {what for what, right in job["permissions"].items() if right != "read"}
        assert writes == MAY_WRITE.get((path.name, name), set())
        assert job["timeout-minutes"] <= 60


@each_workflow
def test_our_code_never_runs_where_something_may_be_written_and_no_checkout_keeps_a_token(
    path: Path,
) -> None:
    for name, step in steps(path):
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False
        if (path.name, name) in MAY_WRITE:
            assert not re.search(r"\b(make|pip|python|npm|curl|wget)\b", step.get("run", ""))


@each_workflow
def test_nothing_from_outside_is_pasted_into_a_script(path: Path) -> None:
    assert not [step["run"] for _, step in steps(path) if "${{" in step.get("run", "")]


def test_untrusted_code_is_never_run_with_the_rights_of_the_project() -> None:
    for path in WORKFLOWS:
        events = read(path)[True]  # YAML 1.1 reads `on` as a truth value
        assert not set(events) & {"pull_request_target", "workflow_run", "issue_comment"}


def uses(job: str) -> list[str]:
    path = ROOT / ".github" / "workflows" / "release.yml"
    return [step["uses"].partition("@")[0] for name, step in steps(path) if name == job and "uses" in step]


def run_lines(job: str) -> str:
    path = ROOT / ".github" / "workflows" / "release.yml"
    return "\n".join(step.get("run", "") for name, step in steps(path) if name == job)


def test_a_release_is_tested_audited_and_attested_and_has_its_bill() -> None:
    built = run_lines("build")
    wanted = (
        "version --tag",
        ".ci/run",
        "make audit-deps STRICT=1",
        "make e2e-wheel",
        "make assets plugin",
        "SHA256SUMS",
    )
    places = [built.index(words) for words in wanted]
    assert places == sorted(places)
    assert {"actions/attest-build-provenance", "actions/attest-sbom"} <= set(uses("attest"))
    assert "sha256sum --check --strict" in run_lines("release")
    jobs = read(ROOT / ".github" / "workflows" / "release.yml")["jobs"]
    assert jobs["release"]["needs"] == ["build", "attest", "image", "chart"]


def test_the_chart_is_pushed_as_it_was_attested_and_signed_by_its_own_digest() -> None:
    script = run_lines("chart")
    places = [script.index(words) for words in ("sha256sum --check --strict", "helm push", "cosign sign --yes")]
    assert places == sorted(places)
    assert '[[ "$digest" =~ ^sha256:[0-9a-f]{64}$ ]]' in script
    assert "--notes-file notes.md" in run_lines("release")


def test_an_image_has_a_base_with_a_digest_and_is_signed_by_its_own() -> None:
    script = run_lines("image")
    assert "imagetools inspect" in script
    assert '[[ "$base" =~ @sha256:[0-9a-f]{64}$ ]]' in script
    assert 'cosign sign --yes "$REFERENCE"' in script
    assert "cosign attest --yes --type cyclonedx --predicate dist/sbom.cdx.json" in script
    path = ROOT / ".github" / "workflows" / "release.yml"
    (build,) = (step for _, step in steps(path) if step.get("uses", "").startswith("docker/build-push-action@"))
    assert build["with"]["build-args"] == "PYTHON_IMAGE=${{ steps.names.outputs.base }}"
    assert build["with"]["platforms"] == "linux/amd64,linux/arm64"
    assert (build["with"]["provenance"], build["with"]["sbom"]) == ("mode=max", True)
    assert "actions/attest-build-provenance" in uses("image")
