"""A script started in a clone imports its sources, and the compiled core that is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("bookie", "ledger_client", "metadata", "native")
PROGRAM = "import ledger_client, native.digest; print(ledger_client.__file__, native.__file__)"


def clone(folder: Path) -> Path:
    """Copy the sources without anything that was built."""
    unwanted = shutil.ignore_patterns("*.so", "__pycache__", "*.c", "*.h")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=unwanted)
    (folder / "script.py").write_text(PROGRAM)
    return folder


def installed(folder: Path) -> Path:
    """Lay out what a plain `pip install` leaves of the core."""
    (folder / "native").mkdir(parents=True)
    (folder / "native/__init__.py").touch()
    core = find_spec("native._core")
    assert core is not None
    assert core.origin is not None
    shutil.copy(core.origin, folder / "native")
    return folder


def run(folder: Path, *paths: Path) -> subprocess.CompletedProcess[str]:
    # Without site, so that an editable install of the tests' own environment has no say.
    libraries = [path for path in sys.path if path.endswith("site-packages")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*map(str, paths), *libraries])}
    return subprocess.run(
        [sys.executable, "-S", "script.py"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_script_in_a_clone_finds_the_installed_core(tmp_path: Path) -> None:
    done = run(clone(tmp_path / "clone"), installed(tmp_path / "site"))
    assert done.returncode == 0, done.stderr
    assert {Path(file).parents[1] for file in done.stdout.split()} == {tmp_path / "clone"}


def test_without_any_core_the_error_names_the_command(tmp_path: Path) -> None:
    folder = clone(tmp_path / "clone")
    program = f"import sys; sys.path.insert(0, {str(folder)!r}); import native"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "pip install" in done.stderr
