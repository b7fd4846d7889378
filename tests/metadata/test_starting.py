"""Ctrl-C while a command loads."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from metadata import starting

PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"
HEAVY = {"bookie", "ledger_client", "native", "click", "trio", "pyarrow", "msgspec"}


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("command", ["quire", "bookie"])
def test_an_interrupt_while_a_command_loads_prints_nothing(command: str) -> None:
    """The interrupt comes while a module of the program is imported."""
    done = run(f"""
import importlib.abc, signal, sys
class Interrupt(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "trio":
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
from metadata.starting import {command}
{command}()
""")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_an_ignored_interrupt_stays_ignored_while_a_command_loads() -> None:
    done = run("""
import signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
from metadata import starting
class Program:
    @staticmethod
    def main():
        signal.raise_signal(signal.SIGINT)
        sys.exit(7)
def load(name):
    signal.raise_signal(signal.SIGINT)
    return Program
starting.import_module = load
starting.quire()
""")
    assert (done.returncode, done.stderr) == (7, "")


def test_an_interrupt_of_a_running_command_is_its_own() -> None:
    done = run("""
import signal
from metadata import starting
class Program:
    @staticmethod
    def main():
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            print("tidied up")
            raise
starting.import_module = lambda name: Program
starting.quire()
""")
    assert (done.returncode, done.stdout, done.stderr) == (130, "tidied up\n", "")


def test_the_entry_points_load_nothing_before_they_handle_interrupts() -> None:
    scripts = tomllib.loads(PYPROJECT.read_text())["project"]["scripts"]
    assert set(scripts.values()) == {"metadata.starting:quire", "metadata.starting:bookie"}
    for place in scripts.values():
        assert callable(getattr(starting, place.partition(":")[2]))
    done = run("import sys, metadata.starting; print(*{m.partition('.')[0] for m in sys.modules})")
    assert not HEAVY & set(done.stdout.split())


def test_garbage_is_looked_for_once_a_command_is_loaded_and_not_in_what_was_loaded() -> None:
    done = run("""
import gc
from metadata import starting
class Program:
    @staticmethod
    def main():
        print(gc.isenabled(), gc.get_freeze_count() > 1000)
def load(name):
    print(gc.isenabled())
    return Program
starting.import_module = load
starting.quire()
""")
    assert (done.returncode, done.stdout, done.stderr) == (0, "False\nTrue True\n", "")
