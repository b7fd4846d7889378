"""Search for what the gate does not try: ``python tests/search.py --help``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent
FOLDERS = [TESTS / name for name in ("support", "simulation", "mutants")]
# What is found here is found there: tests/conftest.py.
os.environ.setdefault("PYTHONHASHSEED", "0")
# Processes that simulate begin anew and import from these folders too.
sys.path[:0] = [str(folder) for folder in FOLDERS]

from search_command import main  # noqa: E402 - the path is set above

if __name__ == "__main__":
    main()
