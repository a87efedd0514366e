"""What every test shares: one torch thread, deterministic kernels, reproducible examples."""

from __future__ import annotations

import hypothesis
import torch

torch.set_num_threads(1)
# On the CPU this also fills fresh memory with NaN, so that a read before a write shows.
torch.use_deterministic_algorithms(True)
hypothesis.settings.register_profile("softaug", deadline=None, derandomize=True, max_examples=30)
hypothesis.settings.load_profile("softaug")
