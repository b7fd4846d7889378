"""The users of a bookie, and the login of the bookies among them."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from command import Command, CommandOutput

from bookie.commands import user
from bookie.config import BookieConfig
from bookie.errors import BookieError
from bookie.security import read_security
from metadata.access import Login
from metadata.outcome import Exit

Add = Callable[..., CommandOutput]


@pytest.fixture
def add(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Add:
    def add_user(name: str, password: str, *words: str) -> CommandOutput:
        monkeypatch.setattr("sys.stdin", io.StringIO(f"{password}\n"))
        return command("user", "add", name, "--stdin", "--data", tmp_path, *words)

    return add_user


async def logs_in(folder: Path) -> bool:
    """True if a bookie that starts with these files admits another one that does."""
    security = read_security(BookieConfig(data_folder=str(folder)))
    assert security.users is not None
    assert security.access.login is not None
    return await security.users.admit(security.access.login)


def login(folder: Path) -> Login | None:
    return read_security(BookieConfig(data_folder=str(folder))).access.login


async def test_the_first_user_is_the_bookies_login_and_others_are_not(
    add: Add, tmp_path: Path
) -> None:
    assert add("ann", "a").out == "ann may call; bookies call each other as ann\n"
    assert add("bob", "b").out == "bob may call\n"
    assert login(tmp_path) == Login("ann", "a")
    assert (tmp_path / "security" / "login").stat().st_mode & 0o777 == 0o600
    assert add("cid", "c", "--login").out == "cid may call; bookies call each other as cid\n"
    assert login(tmp_path) == Login("cid", "c")
    assert await logs_in(tmp_path)


async def test_a_new_password_of_the_bookies_login_is_also_theirs(add: Add, tmp_path: Path) -> None:
    add("ann", "a")
    add("bob", "b")
    changed = add("ann", "new")
    assert changed.out == "ann may call; bookies call each other as ann\n"
    assert "Restart the bookies" in changed.err
    assert login(tmp_path) == Login("ann", "new")
    assert await logs_in(tmp_path)
    assert add("bob", "other").err == ""
    assert login(tmp_path) == Login("ann", "new")


def test_a_login_that_is_a_link_stays_one(add: Add, tmp_path: Path) -> None:
    add("ann", "a")
    path, secret = tmp_path / "security" / "login", tmp_path / "secret"
    path.rename(secret)
    path.symlink_to(secret)
    add("ann", "new")
    assert path.is_symlink()
    assert secret.read_text() == "ann:new\n"


def test_a_password_that_is_no_text_is_refused(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff\n"), "utf-8"))
    told = command("user", "add", "ann", "--stdin", "--data", tmp_path)
    assert told.code == Exit.FAILED
    assert "the password on standard input is not utf-8" in told.err
    assert not (tmp_path / "security").exists()


class Killed(BaseException):
    """Ends a command where it stands."""


def killed(*_: object) -> None:
    raise Killed


@pytest.mark.parametrize("known", [("ann", "a"), ("ann", "a", "bob", "b")])
@pytest.mark.parametrize("name", ["ann", "bob", "cid"])
@pytest.mark.parametrize("step", ["write_users", "_write_login"])
async def test_a_command_that_was_killed_leaves_bookies_that_work_or_is_repeated(
    add: Add,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    known: tuple[str, ...],
    name: str,
    step: str,
) -> None:
    for each, password in zip(known[::2], known[1::2], strict=True):
        add(each, password)
    monkeypatch.setattr(user, step, killed)
    with pytest.raises(Killed):
        add(name, "new", "--login")
    monkeypatch.undo()
    old = Login("ann", "a")  # what running bookies call each other with
    security = read_security(BookieConfig(data_folder=str(tmp_path)))
    assert security.users is not None
    assert await security.users.admit(old)
    if name != "ann":  # else a bookie that starts now has the new password already
        assert await logs_in(tmp_path)
    add(name, "new", "--login")
    assert login(tmp_path) == Login(name, "new")
    assert await logs_in(tmp_path)


@pytest.mark.parametrize("step", ["write_users", "_write_login"])
async def test_a_first_user_that_was_cut_short_lets_nobody_in(
    add: Add, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    monkeypatch.setattr(user, step, killed)
    with pytest.raises(Killed):
        add("ann", "a")
    monkeypatch.undo()
    with pytest.raises(BookieError):
        read_security(BookieConfig(data_folder=str(tmp_path)))
    add("ann", "a")
    assert await logs_in(tmp_path)


def test_the_bookies_login_is_not_removed(add: Add, command: Command, tmp_path: Path) -> None:
    add("ann", "a")
    add("bob", "b")
    assert command("user", "remove", "ann", "--data", tmp_path).code == Exit.FAILED
    assert command("user", "remove", "bob", "--data", tmp_path).code == Exit.DONE
    assert command("user", "list", "--data", tmp_path).out == "ann\n"
