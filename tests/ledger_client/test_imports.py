"""What an import of the client costs: nothing large is loaded before it is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.facts

HEAVY = {"pyarrow", "pyspark", "prometheus_client", "rich"}


@pytest.mark.parametrize(
    "module",
    ["ledger_client", "ledger_client.aio", "ledger_client.blocking", "ledger_client.spark"],
)
def test_importing_it_loads_no_large_library(module: str) -> None:
    program = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True
    )
    assert set(done.stdout.split()) & HEAVY == set()
