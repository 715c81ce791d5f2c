"""Options that some versions lack, by the version that the image's tag says."""

import pytest

from kvpressure.config.thresholds import load_thresholds
from kvpressure.runtimes.vllm.launch import NEWEST, REMOVED, version_of
from kvpressure_planner.audit import audit, read


def judged(image: str, *args: str) -> tuple[str, str, int | None]:
    listed = "".join(f"\n      - {arg}" for arg in ("--model=x", *args))
    pod = f"kind: Pod\nmetadata: {{name: p}}\nspec:\n  containers:\n  - image: {image}\n    args:{listed}\n"
    (engine,) = audit(read(pod, "f"), load_thresholds()).engines
    found = next(one for one in engine.findings if one.check == "options")
    return found.status, found.reason, found.place.line


@pytest.mark.parametrize(
    ("image", "option", "status"),
    [
        ("vllm/vllm-openai:v0.28.0", "--swap-space=16", "fail"),
        ("registry:5000/mirror/vllm/vllm-openai:v0.22.1-x86_64", "--swap_space=16", "fail"),
        ("vllm/vllm-openai", "--disable-log-requests", "fail"),
        ("vllm/vllm-openai:latest@sha256:0", "--use-v2-block-manager", "fail"),
        ("vllm/vllm-openai:v0.12.0", "--swap-space=16", "pass"),
        ("vllm/vllm-openai:v0.8.5", "--num-scheduler-steps=8", "pass"),
        ("vllm/vllm-openai:v0.15.1", "--swap-space=16", "unknown"),
        ("lmcache/vllm-openai:v0.3.9", "--swap-space=16", "unknown"),
        ("vllm/vllm-openai:v0.28.0", "--max-num-seqs=8", "pass"),
    ],
)
def test_an_option_is_judged_by_the_version_of_the_image(image: str, option: str, status: str) -> None:
    assert judged(image, option)[0] == status


def test_the_reason_names_the_option_its_line_and_the_version() -> None:
    status, reason, line = judged("vllm/vllm-openai:v0.28.0", "--port=1", "--swap-space=16", "--disable-log-requests")
    gone = "--disable-log-requests (and 1 more) is no option of vLLM 0.22 and later"
    assert reason == f"{gone}, and the image is vllm/vllm-openai:v0.28.0: the server does not start"
    assert (status, line) == ("fail", 10)


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("vllm/vllm-openai:v0.9.2-cu128", (0, 9)),
        ("rocm/vllm:rocm6.2_mi300_ubuntu20.04_py3.9_vllm_0.6.4", (0, 6)),
        ("vllm/vllm-openai:nightly-0123abc", NEWEST),
        ("vllm/vllm-openai:main", None),
        ("ghcr.io/llm-d/llm-d-cuda:v0.5.0", None),
        ("", None),
    ],
)
def test_only_tags_of_vllms_own_images_are_its_versions(image: str, version: tuple[int, int] | None) -> None:
    assert version_of(image) == version


def test_an_option_is_gone_after_the_version_that_has_it() -> None:
    assert all(last is None or last < without for last, without in REMOVED.values())
