"""A training run in its own process, slow enough to be killed: python -m tests.train.child OUT OPTIMIZER"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch

from dlite.train import loop
from tests.train.support import recipe, run

if __name__ == "__main__":
    torch.set_num_threads(1)
    loop._tensorboard = lambda folder: None
    run(recipe(optimizer=sys.argv[2]), Path(sys.argv[1]), report=lambda now: time.sleep(0.05))
