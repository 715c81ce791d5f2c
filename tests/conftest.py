from __future__ import annotations

from hypothesis import settings

# No test depends on how busy the machine is.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
