"""What every test shares: one torch thread, deterministic kernels, reproducible examples."""

from __future__ import annotations

import os
import signal
import tempfile

import hypothesis
import pytest
import torch

# A shell starts background jobs with Ctrl-C ignored, and children inherit that: tests that send it would wait in vain.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Which runs were trained here (`softaug.trust`) is kept apart from the user's own records; processes inherit it.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="softaug-tests-state-")
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic kernels need it on CUDA
torch.set_num_threads(1)
# Also in the processes that tests start: other tests run on the other core.
os.environ["OMP_NUM_THREADS"] = "1"
# On the CPU this also fills fresh memory with NaN, so that a read before a write shows.
torch.use_deterministic_algorithms(True)
torch.backends.cudnn.allow_tf32 = (
    False  # convolutions in full float32 on CUDA too, as comparisons with the CPU need
)
hypothesis.settings.register_profile("softaug", deadline=None, derandomize=True, max_examples=30)
hypothesis.settings.load_profile("softaug")

DEVICES = ["cpu"]
DEVICES += ["cuda"] if torch.cuda.is_available() else []
DEVICES += ["mps"] if torch.backends.mps.is_available() else []


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    """Every device of this machine: a test that takes it computes on each of them."""
    return request.param
