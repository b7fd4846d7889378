"""Who holds SQLite's write lock, read from the kernel's list of locks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from metadata.lock_holder import describe_holder

OTHER = 2**22 + 1  # above the kernel's greatest process id


@pytest.fixture
def store(tmp_path: Path) -> Path:
    (tmp_path / "metadata.db-shm").touch()
    (tmp_path / "metadata.db").touch()
    return tmp_path / "metadata.db"


def lock(path: Path, first: str, last: str, *, kind: str = "POSIX", mode: str = "WRITE") -> str:
    found = path.stat()
    device = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}"
    return f"1: {kind}  ADVISORY  {mode} {OTHER} {device}:{found.st_ino} {first} {last}\n"


def seen(store: Path, tmp_path: Path, line: str) -> str:
    (tmp_path / "locks").write_text(f"1: FLOCK  ADVISORY  WRITE 1 00:19:1 0 EOF\n{line}")
    return describe_holder(store, locks=tmp_path / "locks")


@pytest.mark.parametrize(("first", "last"), [("120", "120"), ("120", "127"), ("0", "EOF")])
def test_a_lock_on_the_byte_for_writers_is_the_holders(
    store: Path, tmp_path: Path, first: str, last: str
) -> None:
    line = lock(store.with_name("metadata.db-shm"), first, last)
    assert seen(store, tmp_path, line).startswith(f"process {OTHER} ")


def test_a_lock_on_the_whole_database_is_the_holders(store: Path, tmp_path: Path) -> None:
    assert f"{OTHER}" in seen(store, tmp_path, lock(store, "1073741824", "1073742335"))


def test_other_locks_are_nobodys_business(store: Path, tmp_path: Path) -> None:
    shared = store.with_name("metadata.db-shm")
    for line in (
        lock(shared, "123", "123"),
        lock(shared, "120", "120", mode="READ"),
        lock(shared, "120", "120", kind="FLOCK"),
        lock(tmp_path, "120", "120"),
        lock(shared, "120", "120").replace(str(OTHER), str(os.getpid())),
        lock(shared, "120", "120").replace(str(OTHER), "0"),
        "no line of this list\n",
        "1: POSIX ADVISORY WRITE x y z 1\n",
    ):
        assert seen(store, tmp_path, line) == ""


def test_a_kernel_that_shows_no_locks_is_no_error(store: Path, tmp_path: Path) -> None:
    assert describe_holder(store, locks=tmp_path / "missing") == ""
