from __future__ import annotations

import signal

from hypothesis import settings

# No test depends on how busy the machine is.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")

# A shell starts background jobs with SIGINT ignored, and so would be every program that a test starts and interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
