from __future__ import annotations

import resource
from pathlib import Path

import pytest
from rig import settings

from bookie import descriptors
from bookie.descriptors import (
    RESERVE,
    fit_descriptors,
    needed_for,
    raise_limit,
    served_max_of,
)
from bookie.errors import BookieError

pytestmark = pytest.mark.facts


@pytest.mark.parametrize("limit", [*range(380, 480), 1024, 4096, 65_536, 1 << 30])
def test_as_many_are_served_as_leave_the_disk_its_reserve(limit: int) -> None:
    served = served_max_of(limit)
    assert served == 0 or needed_for(served) <= limit
    assert needed_for(served + 1) > limit


def test_the_reserve_covers_what_the_store_keeps_open() -> None:
    """FILES_OPEN_MAX of native/opening.c, and 128 beside."""
    store = Path(descriptors.__file__).parents[1] / "native" / "opening.c"
    assert "#define FILES_OPEN_MAX 256\n" in store.read_text()
    assert RESERVE == 256 + 128


def test_with_few_descriptors_fewer_connections_are_served_and_the_log_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(descriptors, "raise_limit", lambda: 1024)
    assert fit_descriptors(settings(tmp_path)).connections_max == 466
    assert "serves 466 connections, not connections_max 1000, which takes 1759" in caplog.text
    caplog.clear()
    fewer = settings(tmp_path, connections_max=100)
    assert fit_descriptors(fewer) == fewer
    assert caplog.text == ""


def test_with_too_few_descriptors_the_bookie_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(descriptors, "raise_limit", lambda: 400)
    with pytest.raises(BookieError, match="may open 400 files; 424 are the least"):
        fit_descriptors(settings(tmp_path))


def test_the_soft_limit_is_raised_to_the_hard_one(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 2048))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: asked.append(limits))
    assert raise_limit() == 2048
    assert asked == [(2048, 2048)]
