"""What is said while tests run."""

from __future__ import annotations

from pathlib import Path

import pytest
from teller import LAST_PART, Teller


@pytest.mark.parametrize(
    ("test", "is_last"),
    [
        ("tests/a.py::test_a[x]", False),
        ("tests/a.py::test_a[x]@zookeeper", False),
        ("tests/a.py::test_a[x]@real-spark", False),
        ("tests/a.py::test_a[x]@real-drivers", False),
        ("tests/a.py::test_a[x]@real-0", True),
        ("tests/a.py::test_a[x]@real-1", True),
    ],
)
def test_the_last_part_begins_with_the_first_test_of_real_processes(
    pytestconfig: pytest.Config,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    test: str,
    is_last: bool,
) -> None:
    sign = tmp_path / "sign"
    monkeypatch.setenv(LAST_PART, str(sign))
    Teller(pytestconfig).pytest_runtest_logstart(test)
    assert sign.exists() is is_last
