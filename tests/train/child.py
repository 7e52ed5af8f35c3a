"""A training run in its own process, to be killed before it ends: python -m tests.train.child OUT OPTIMIZER"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch

from dlite.train import record
from dlite.train.loop import Progress
from tests.train.support import recipe, run


def linger(now: Progress) -> None:
    """Leave time for the kill, and never finish."""
    time.sleep(60 if now.step == now.steps - 1 else 0.03)


if __name__ == "__main__":
    torch.set_num_threads(1)
    record.tensorboard = lambda folder: None
    run(recipe(optimizer=sys.argv[2]), Path(sys.argv[1]), report=linger)
