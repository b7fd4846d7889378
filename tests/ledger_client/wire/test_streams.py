"""Login and TLS, against a peer that sends a given answer."""

from __future__ import annotations

import ssl
from contextlib import suppress
from pathlib import Path

import pytest
import trio
import trio.testing
import trustme

from ledger_client.wire import streams
from ledger_client.wire.streams import opener
from metadata.access import (
    ACCEPTED,
    NO_PLUGIN,
    PLUGIN,
    REFUSED,
    Access,
    Login,
    auth_frame,
    parse_auth,
    parse_login,
)
from metadata.cluster_url import parse_cluster_url
from metadata.errors import AccessDenied, BadAddress

ALICE = Access(login=Login("alice", "secret"))


async def call(answer: bytes) -> tuple[trio.abc.Stream, bytes]:
    """Log in as alice at a peer that answers *answer* and leaves; return what it received."""
    ours, theirs = trio.testing.memory_stream_pair()

    async def reach(_host: str, _port: int) -> trio.abc.Stream:
        return ours

    await theirs.send_all(answer)
    await theirs.send_eof()
    stream = await opener(ALICE, reach)("host", 1)
    return stream, bytes(await theirs.receive_some())


async def test_a_caller_says_who_it_is_before_anything_else() -> None:
    _, received = await call(auth_frame(PLUGIN, ACCEPTED))
    assert parse_login(parse_auth(received[8:])[1]) == ALICE.login


async def test_a_bookie_that_wants_no_login_is_as_good() -> None:
    await call(auth_frame(NO_PLUGIN, b""))


async def test_a_login_that_nobody_checks_is_logged_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "_unchecked", set[str]())
    await call(auth_frame(PLUGIN, ACCEPTED))
    assert not caplog.records
    for _ in range(3):
        await call(auth_frame(NO_PLUGIN, b""))
    (warned,) = caplog.records
    assert warned.levelname == "WARNING"
    assert "host:1 did not check the login of alice" in warned.getMessage()
    assert "secret" not in caplog.text


async def test_a_refusal_is_final_and_does_not_tell_the_password() -> None:
    with pytest.raises(AccessDenied, match="alice") as refused:
        await call(auth_frame(PLUGIN, REFUSED))
    assert "secret" not in str(refused.value)
    with pytest.raises(AccessDenied, match="KERBEROS"):
        await call(auth_frame("KERBEROS", b""))


@pytest.mark.parametrize("answer", [b"", b"\0\0", b"\xff" * 64, auth_frame(PLUGIN, b"")[:-1]])
async def test_an_answer_that_is_none_is_a_lost_connection(answer: bytes) -> None:
    with pytest.raises(OSError, match="host:1"):
        await call(answer)


@pytest.mark.parametrize(
    ("trusts", "host", "remedy"),
    [
        (False, "bookie", r"name the authority that signed it behind the address: \?ca=FILE"),
        (True, "other", "call it by a name that the certificate holds"),
    ],
)
async def test_a_certificate_that_is_not_trusted_comes_with_a_remedy(
    trusts: bool, host: str, remedy: str, tmp_path: Path, nursery: trio.Nursery
) -> None:
    authority = trustme.CA()
    (authority if trusts else trustme.CA()).cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("bookie").configure_cert(context)
    ours, theirs = trio.testing.memory_stream_pair()

    async def serve() -> None:
        encrypted = trio.SSLStream(theirs, context, server_side=True)
        with suppress(trio.BrokenResourceError):
            await encrypted.do_handshake()

    async def reach(_host: str, _port: int) -> trio.abc.Stream:
        return ours

    nursery.start_soon(serve)
    with pytest.raises(AccessDenied, match=f"certificate of {host}:1 is not trusted: .*; {remedy}"):
        await opener(Access(tls=True, ca=str(tmp_path / "ca.pem")), reach)(host, 1)


def test_a_file_of_certificates_that_is_not_there_is_named() -> None:
    url = parse_cluster_url("bookie+tls://a:1?ca=/nowhere/ca.pem")
    with pytest.raises(BadAddress, match=r"/nowhere/ca\.pem"):
        opener(url.access)
