"""What every test shares: one torch thread, deterministic kernels, reproducible examples."""

from __future__ import annotations

import os
import signal
import tempfile

import hypothesis
import torch

# A shell starts background jobs with Ctrl-C ignored, and children inherit that: tests that send it would wait in vain.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Which runs were trained here (`softaug.trust`) is kept apart from the user's own records; processes inherit it.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="softaug-tests-state-")
torch.set_num_threads(1)
# On the CPU this also fills fresh memory with NaN, so that a read before a write shows.
torch.use_deterministic_algorithms(True)
hypothesis.settings.register_profile("softaug", deadline=None, derandomize=True, max_examples=30)
hypothesis.settings.load_profile("softaug")
