"""``python -m dlite``, and what ``accelerate launch -m dlite`` runs."""

from dlite.cli import main

main()
