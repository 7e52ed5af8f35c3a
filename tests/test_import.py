"""Importing dlite costs nothing, and every module can be imported first."""

from __future__ import annotations

import subprocess
import sys

LIGHT = """
import sys
import dlite, dlite.cli
heavy = {"torch", "transformers", "matplotlib", "accelerate", "numpy", "httpx"} & set(sys.modules)
assert not heavy, heavy
assert "generate" in dlite.__all__
"""

ALONE = """
import importlib, pkgutil, sys, warnings
warnings.simplefilter("error", ImportWarning)
import dlite
names = [m.name for m in pkgutil.walk_packages(dlite.__path__, "dlite.") if not m.name.endswith("__main__")]
assert len(names) > 40, names
for name in names:
    for loaded in [n for n in sys.modules if n == "dlite" or n.startswith("dlite.")]:
        del sys.modules[loaded]
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:  # the parts of a plug-in that its engine alone imports
        assert "_plugin." in name and error.name.partition(".")[0] in ("vllm", "sglang"), (name, error)
late = {"transformers", "vllm", "sglang", "triton", "gguf"} & set(sys.modules)
print(sorted(late))
for name in dlite.__all__:
    getattr(dlite, name)
"""


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_the_package_and_the_command_line_loads_nothing_heavy() -> None:
    python(LIGHT)


def test_every_module_can_be_imported_first() -> None:
    """No cycle hides behind a lucky order; optional and heavy packages wait until they are used."""
    assert python(ALONE) == "[]\n"
