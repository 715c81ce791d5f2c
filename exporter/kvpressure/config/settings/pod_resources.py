"""Whether and how the kubelet is asked which container holds which GPU."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, Field

from kvpressure.config.settings.polling import Section
from kvpressure.config.settings.types import Number, Switch

DEFAULT_RESOURCE_NAMES: Final = (
    "nvidia.com/gpu",
    "nvidia.com/gpu.shared",
    "nvidia.com/mig-*",
    "amd.com/gpu",
    "amd.com/?px_nps*",
)
"""`.shared` is what NVIDIA's plugin renames replicas to, `?px_nps*` what AMD's calls partitions (`cpx_nps4`)."""

_RESOURCE_NAME: Final = re.compile(r"[A-Za-z0-9.*?-]+/[A-Za-z0-9._*?-]+")


def _resource_name(text: str) -> str:
    if not _RESOURCE_NAME.fullmatch(text):
        raise ValueError(f"must be a resource name such as nvidia.com/gpu, may have * and ?, got {text!r}")
    return text


def _split(value: Any) -> Any:
    items = [item.strip() for item in value.split(",")] if isinstance(value, str) else value
    if items in ([], (), [""]):
        raise ValueError("must have at least one entry")
    return items


ResourceNames = Annotated[tuple[Annotated[str, AfterValidator(_resource_name)], ...], BeforeValidator(_split)]


class PodResourcesSettings(Section):
    """The kubelet's pod-resources API, which says which container holds which GPU."""

    enabled: Switch = Field(default="auto", description="Ask the kubelet; `auto`: once socket_dir is there.")
    socket_dir: Path = Field(
        default=Path("/var/lib/kubelet/pod-resources"),
        description="Directory of `kubelet.sock`. Mount the directory: a restarted kubelet makes a new socket.",
    )
    interval_seconds: Number = Field(default=10.0, ge=1, le=300, description="Time between two questions.")
    keep_seconds: Number = Field(
        default=300.0, ge=0, le=3600, description="How long the last answer holds while the kubelet does not answer."
    )
    resource_names: ResourceNames = Field(
        default=DEFAULT_RESOURCE_NAMES, description="Resources that are GPUs; `*` and `?` stand for any characters."
    )
