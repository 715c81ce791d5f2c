"""PURE: manifests to checks to findings; what `kvpressure audit` prints."""

from __future__ import annotations

from kvpressure.audit.manifests import Manifests, from_objects, read
from kvpressure.audit.model import Finding, Problem, Report
from kvpressure.audit.review import audit

__all__ = ["Finding", "Manifests", "Problem", "Report", "audit", "from_objects", "read"]
