"""Who is let in, by a bookie that wants a login."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme
import v2
from rig import Peer, Rig, serving, settings

from bookie.errors import BookieError
from bookie.security import Security, read_security
from bookie.users import Users, read_users, secret_of, write_users
from metadata.access import ACCEPTED, PLUGIN, REFUSED, Login, auth_frame, parse_auth
from native import frame

ALICE = Login("alice", "secret")


def login(user: str = "alice", password: str = "secret") -> bytes:
    return auth_frame(PLUGIN, f"\0{user}\0{password}".encode())


@pytest.fixture
def users(tmp_path: Path) -> Path:
    path = tmp_path / "users"
    write_users(path, {"alice": secret_of(ALICE)})
    return path


@asynccontextmanager
async def guarded(users: Path, folder: Path) -> AsyncIterator[Rig]:
    async with serving(settings(folder), security=Security(users=Users(users))) as rig:
        yield rig


def spoil(path: Path) -> None:
    path.write_text("damaged")


async def answer_to(peer: Peer, request: bytes) -> bytes:
    await peer.stream.send_all(request)
    return parse_auth((await peer.frame())[8:])[1]


async def test_who_logs_in_is_served_also_with_what_came_along(users: Path, tmp_path: Path) -> None:
    """TB-52: user and password."""
    async with guarded(users, tmp_path) as rig:
        peer = rig.connect()
        assert await answer_to(peer, login() + v2.ADD_HELLO) == ACCEPTED
        assert (await peer.response()).code == 0
        assert (await peer.ask(v2.READ_HELLO)).code == 0


async def test_without_a_login_an_add_and_a_read_are_refused_and_do_nothing(
    users: Path, tmp_path: Path
) -> None:
    async with guarded(users, tmp_path) as rig:
        peer = rig.connect()
        add = await peer.ask(v2.ADD_HELLO)
        assert (add.opcode, add.code, add.ledger_id) == (v2.ADD, 102, 1)
        assert (await peer.ask(v2.READ_HELLO)).code == 102
        assert await answer_to(peer, login()) == ACCEPTED
        assert (await peer.ask(v2.READ_HELLO)).code == 1, "the add came through"


async def test_a_call_without_a_login_is_told_so_and_ends_the_connection(
    users: Path, tmp_path: Path
) -> None:
    async with guarded(users, tmp_path) as rig:
        peer = rig.connect()
        assert (await peer.ask(frame.call(7, b"x"))).code == 102
        assert await peer.closed()


@pytest.mark.parametrize(("user", "password"), [("alice", "wrong"), ("bob", "secret"), ("", "")])
async def test_a_wrong_login_is_refused_and_ends_the_connection(
    users: Path, tmp_path: Path, user: str, password: str
) -> None:
    async with guarded(users, tmp_path) as rig:
        peer = rig.connect()
        assert await answer_to(peer, login(user, password)) == REFUSED
        assert await peer.closed()


@pytest.mark.parametrize(
    "garbage",
    [b"\xff" * 64, b"\0\0\0\0", v2.ADD_HELLO[:9] + b"\0" * 3, b"\0\1\0\0" + bytes(70_000)],
)
async def test_what_is_no_frame_ends_the_connection(
    users: Path, tmp_path: Path, garbage: bytes
) -> None:
    async with guarded(users, tmp_path) as rig:
        peer = rig.connect()
        await peer.stream.send_all(garbage)
        await peer.stream.send_eof()  # type: ignore[attr-defined] # of a pair in memory
        assert await peer.closed()
        assert rig.server.connections == 0


async def test_who_asks_without_end_is_sent_away(users: Path, tmp_path: Path) -> None:
    async with guarded(users, tmp_path) as rig:
        peer = rig.connect()
        for _ in range(16):
            assert (await peer.ask(v2.READ_HELLO)).code == 102
        assert await peer.closed()


async def test_a_user_that_is_added_or_removed_counts_at_once(users: Path, tmp_path: Path) -> None:
    async with guarded(users, tmp_path) as rig:
        assert await answer_to(rig.connect(), login()) == ACCEPTED
        write_users(users, {"bob": secret_of(Login("bob", "secret"))})
        assert await answer_to(rig.connect(), login()) == REFUSED
        assert await answer_to(rig.connect(), login("bob")) == ACCEPTED
        spoil(users)
        assert await answer_to(rig.connect(), login("bob")) == REFUSED


def test_a_file_of_users_holds_no_password_and_only_its_owner_reads_it(users: Path) -> None:
    assert "secret" not in users.read_text()
    assert users.stat().st_mode & 0o077 == 0
    assert read_users(users) == read_users(users)


@pytest.mark.parametrize("line", ["alice", "alice:12", "alice:12:zz", "a b:12:12", ":12:12"])
def test_a_line_that_is_no_user_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "users"
    path.write_text(f"# comment\n\n{line}\n")
    with pytest.raises(BookieError, match="line 3"):
        Users(path)


@pytest.mark.parametrize("wrong", [Login("a b", "x"), Login("", "x"), Login("a", "")])
def test_a_name_or_password_that_cannot_be_kept_is_refused(wrong: Login) -> None:
    with pytest.raises(BookieError):
        secret_of(wrong)


def test_without_the_folder_anybody_may_call(tmp_path: Path) -> None:
    security = read_security(settings(tmp_path))
    assert security.context is None
    assert security.users is None


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ({"certificate.pem": "x", "key.pem": "y"}, "certificate.pem"),
        ({"certificate.pem": "x"}, "certificate.pem"),
        ({"clients.pem": "x"}, "clients.pem"),
        ({"users": ""}, "login"),
        ({"login": "alice"}, "login"),
        ({"login": "alice:secret"}, "users"),
        ({"ca.pem": "x"}, "ca.pem"),
        ({"users": "", "login": "alice:secret", "ca.pem": "x"}, "ca.pem"),
        ({"user": "a misspelt name"}, "neither users nor certificate.pem"),
        ({}, "neither users nor certificate.pem"),
    ],
)
def test_a_folder_that_cannot_be_used_is_refused_at_the_start(
    tmp_path: Path, files: dict[str, str], named: str
) -> None:
    folder = tmp_path / "security"
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    with pytest.raises(BookieError, match=named):
        read_security(settings(tmp_path))


def test_a_login_without_users_is_refused_also_with_tls(tmp_path: Path) -> None:
    folder = tmp_path / "security"
    folder.mkdir()
    issued = trustme.CA().issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(str(folder / "key.pem"))
    issued.cert_chain_pems[0].write_to_path(str(folder / "certificate.pem"))
    assert read_security(settings(tmp_path)).users is None
    (folder / "login").write_text("alice:secret")
    with pytest.raises(BookieError, match="users: missing"):
        read_security(settings(tmp_path))


@pytest.mark.parametrize(
    ("days", "told"),
    [(-1, "certificate.pem expired at"), (29, "certificate.pem expires at"), (31, "")],
)
def test_a_certificate_that_is_over_or_soon_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, days: int, told: str
) -> None:
    folder = tmp_path / "security"
    folder.mkdir()
    ends = datetime.now(UTC).replace(microsecond=0) + timedelta(days=days)
    issued = trustme.CA().issue_cert("127.0.0.1", not_after=ends)
    issued.private_key_pem.write_to_path(str(folder / "key.pem"))
    issued.cert_chain_pems[0].write_to_path(str(folder / "certificate.pem"))
    security = read_security(settings(tmp_path))
    assert security.expires_s == ends.timestamp()
    assert told in caplog.text
    assert bool(caplog.text) == bool(told)


def test_a_bookie_that_does_not_know_where_to_look_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BookieError, match="data_folder"):
        read_security(settings(tmp_path, data_folder=""))
    with pytest.raises(BookieError, match="not mounted here"):
        read_security(settings(tmp_path, data_folder=str(tmp_path / "not mounted here")))


def test_a_link_to_a_folder_that_is_gone_is_refused(tmp_path: Path) -> None:
    (tmp_path / "security").symlink_to(tmp_path / "shared")
    with pytest.raises(BookieError, match="shared, which is missing"):
        read_security(settings(tmp_path))


@pytest.mark.parametrize("lost", [("clients.pem",), ("users", "login")])
def test_links_to_files_that_are_gone_let_nobody_in(tmp_path: Path, lost: tuple[str, ...]) -> None:
    """A volume with secrets is not mounted: without them TLS alone would be asked for."""
    folder = tmp_path / "security"
    folder.mkdir()
    issued = trustme.CA().issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(str(folder / "key.pem"))
    issued.cert_chain_pems[0].write_to_path(str(folder / "certificate.pem"))
    for name in lost:
        (folder / name).symlink_to(tmp_path / "secrets" / name)
    with pytest.raises(BookieError, match=f"secrets/{lost[0]}, which is missing"):
        read_security(settings(tmp_path))
