"""PURE: manifests to checks to findings; what `kvpressure audit` prints."""

from __future__ import annotations

from kvpressure.tools.audit.manifests import Manifests, from_objects, read
from kvpressure.tools.audit.model import Finding, Problem, Report
from kvpressure.tools.audit.review import audit
from kvpressure.tools.audit.sizing import Knowledge

__all__ = ["Finding", "Knowledge", "Manifests", "Problem", "Report", "audit", "from_objects", "read"]
