"""The documentation says what the code does: the command reference, the list of files, public names and links."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

import dlite

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def test_command_reference_is_what_help_prints() -> None:
    spec = importlib.util.spec_from_file_location("make_cli", ROOT / "docs" / "make_cli.py")
    assert spec is not None
    assert spec.loader is not None
    make_cli = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make_cli)
    assert (ROOT / "docs" / "cli.md").read_text(encoding="utf-8") == make_cli.render(), "run: make docs"


def test_every_source_file_has_its_sentence() -> None:
    page = (ROOT / "docs" / "structure.md").read_text(encoding="utf-8")
    package = ROOT / "src" / "dlite"
    files = [f.relative_to(package).as_posix() for f in package.rglob("*.py") if not f.name.startswith("__")]
    assert [f for f in files if f"`{f}`" not in page] == []


def test_files_import_only_from_their_group_or_above() -> None:
    page = (ROOT / "docs" / "structure.md").read_text(encoding="utf-8")
    names = re.findall(r"^\| `([\w/]+(?:\.py|/))` \|", page, re.MULTILINE)
    order = list(dict.fromkeys(name.split("/")[0] for name in names))
    wrong = []
    for file in sorted((ROOT / "src" / "dlite").rglob("*.py")):
        group = file.relative_to(ROOT / "src" / "dlite").parts[0]
        if group not in order:  # __init__ and __main__ open onto everything
            continue
        for module in re.findall(r"^(?:from|import) dlite\.(\w+)", file.read_text(encoding="utf-8"), re.MULTILINE):
            other = f"{module}.py" if f"{module}.py" in order else module
            if other not in order[: order.index(group) + 1]:
                wrong.append(f"{file.name} imports {module}")
    assert wrong == []


def test_every_public_name_is_in_the_reference() -> None:
    page = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    assert [name for name in dlite.__all__ if f"`{name}`" not in page] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]*)(#[^)\s]*)?\)", page.read_text(encoding="utf-8"))
    local = [(name, anchor) for name, anchor in links if "://" not in name]
    broken = []
    for name, anchor in local:
        goal = page.parent / name if name else page
        if not goal.exists() or (anchor and anchor[1:] not in anchors(goal)):
            broken.append(name + anchor)
    assert broken == []


def anchors(page: Path) -> set[str]:
    """The fragments that headings of a Markdown page make, as hosting sites make them."""
    headings = re.findall(r"^#+ +(.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in headings}
