"""What the process that shows the tests says, and does, while they run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

LAST_PART = "QUIRE_LAST_PART"
"""In the environment: a file that is made when the last part of the tests begins, those with real
processes but for Spark's. They wait more than they compute, so other work may run beside them."""


class Teller:
    """Names a test as soon as it fails: the end of the run may be a quarter of an hour away."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._sign = os.environ.pop(LAST_PART, None)  # it is not for a pytest that a test runs

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Note that the last part begins."""
        if self._sign is not None and nodeid.endswith(("@real-0", "@real-1")):
            Path(self._sign).touch()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Print one line about a failure."""
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and reporter is not None:
            reporter.write(f"\nfailed: {report.nodeid} ({report.when})\n", red=True)
