"""Settings every test runs under, and the small targets most of them share."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, settings

from dlite import cli
from dlite.target.hf import HFTarget
from tests.support import FAMILIES, Run, tiny_model

# Derandomised: a near-tie between two logits may be decided by rounding, and the committed cases have none.
settings.register_profile(
    "dlite",
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("dlite")


@pytest.fixture(autouse=True, scope="session")
def strict_torch() -> Iterator[None]:
    """One thread, and ``torch.empty`` is NaN: an uninitialised read shows."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)


@pytest.fixture(scope="session", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    """The name of a model family."""
    return request.param


@pytest.fixture(scope="session")
def hf_target(family: str) -> HFTarget:
    """A frozen tiny target of each family."""
    return HFTarget(tiny_model(family), None, family)


@pytest.fixture
def dlite(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the entry point: (status, stdout, stderr)."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["dlite", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        out = capsys.readouterr()
        return int(end.value.code or 0), out.out, out.err

    return run
