"""For whom a bundle is: people who run the exporter, or people who have nothing but vLLM's own series.

A flavour is a folder of rule templates, a folder of dashboards, and the label matchers that find its series. Another
alert of a flavour is one template in its folder.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Flavour:
    """One flavour. `folder` is below `rules/` and `dashboards/templates/`, "" for the folder itself.

    `selector` are the label matchers used where nobody gives any, "" for none; `needs_selector` refuses to do without.
    `suffix` goes into the names of Kubernetes objects, so that bundles of two flavours live side by side.
    """

    name: str
    folder: str
    selector: str
    needs_selector: bool
    suffix: str


EXPORTER: Final = Flavour("exporter", "", 'job="kvpressure"', needs_selector=True, suffix="")
"""Rules and dashboards on the exporter's series."""

VLLM_ONLY: Final = Flavour("vllm-only", "vllm-only", "", needs_selector=False, suffix="-vllm-only")
"""Rules and a dashboard on `vllm:*` as any Prometheus has them. Their names find them: no matcher is needed."""

FLAVOURS: Final = {flavour.name: flavour for flavour in (EXPORTER, VLLM_ONLY)}
