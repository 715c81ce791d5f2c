"""PURE: manifests to checks to findings; what `kvpressure audit` prints."""

from __future__ import annotations

from kvpressure.audit.manifests import Manifests, from_objects, read
from kvpressure.audit.model import Finding, Problem, Report
from kvpressure.audit.review import audit
from kvpressure.audit.sizing import Knowledge

__all__ = ["Finding", "Knowledge", "Manifests", "Problem", "Report", "audit", "from_objects", "read"]
