"""The shape of the house: who may import whom, and what may lie where.

    native  <  metadata  <  bookie
                         <  ledger_client

Packages on one line never import each other; ``grafana`` only describes and imports
none. Only the programs of ``bookie`` may look into the client too; those of
``ledger_client`` start bookies as processes and never import them.
"""

from __future__ import annotations

import ast
import fnmatch
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MAY_IMPORT = {
    "native": {"native"},
    "metadata": {"native", "metadata"},
    "bookie": {"native", "metadata", "bookie"},
    "ledger_client": {"native", "metadata", "ledger_client"},
    "grafana": {"grafana"},
}
PACKAGES = frozenset(MAY_IMPORT)
TOP_FOLDERS = PACKAGES | {"tests"}
# These names promise nothing, so in time they hold everything.
EMPTY_NAMES = {"utils", "util", "common", "helpers", "helper", "base", "manager", "impl", "misc"}
FILE_LINES_MAX = 600

MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def imports(source: Path) -> Iterator[str]:
    """Every module that *source* imports, wherever in it, in dotted form."""
    for node in ast.walk(ast.parse(source.read_bytes(), str(source))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def allowed(module: Path) -> set[str]:
    package, *rest = module.relative_to(ROOT).parts
    if package == "bookie" and rest[0] in {"__main__.py", "commands"}:
        return MAY_IMPORT[package] | {"ledger_client"}
    return MAY_IMPORT[package]


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("module", MODULES, ids=name)
def test_imports_run_downward(module: Path) -> None:
    packages = {imported.partition(".")[0] for imported in imports(module)} & PACKAGES
    assert packages <= allowed(module)


def test_only_the_bindings_touch_the_generated_module() -> None:
    outside = [path for path in MODULES if path.parent != ROOT / "native"]
    touching = [
        name(path)
        for path in outside
        if any(imported.startswith("native._core") for imported in imports(path))
    ]
    assert touching == []


def test_no_top_level_folder_is_outside_the_plan() -> None:
    lines = (ROOT / ".gitignore").read_text().splitlines()
    ignored = [line.strip("/") for line in lines if line.endswith("/")]
    folders = {path.name for path in ROOT.iterdir() if path.is_dir()}
    kept = {
        folder
        for folder in folders
        if not folder.startswith(".") and not any(fnmatch.fnmatch(folder, p) for p in ignored)
    }
    assert kept <= TOP_FOLDERS


def test_every_header_of_the_core_is_declared_in_cmake() -> None:
    declared = re.search(r"set\(HEADERS ([^)]*)\)", (ROOT / "native/CMakeLists.txt").read_text())
    assert declared is not None
    headers = {path.name for path in (ROOT / "native").glob("*.h")}
    public = {name for name in headers if not name.endswith("internal.h")}
    assert set(declared[1].split()) == public


def test_a_file_is_named_for_what_it_holds() -> None:
    assert [name(path) for path in MODULES if path.stem in EMPTY_NAMES] == []


def test_no_file_outgrows_its_name() -> None:
    sources = [*MODULES, *(ROOT / "native").glob("*.[ch]"), *(ROOT / "tests").rglob("*.py")]
    sizes = {name(path): len(path.read_bytes().splitlines()) for path in sources}
    assert {path: lines for path, lines in sizes.items() if lines > FILE_LINES_MAX} == {}
