"""A cluster that speaks TLS and wants a login, by the commands of its users."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trustme
from never_twice import never_twice

import ledger_client
from ledger_client.commands.sandbox import Sandbox
from ledger_client.errors import AccessDenied


def prepare(folder: Path, *, tls: bool = True, clients: bool = False) -> trustme.CA:
    """Write what a cluster in *folder* asks of its callers: TLS, and alice's password."""
    ca = trustme.CA()
    command = [sys.executable, "-m", "bookie", "user", "add", "alice", "--stdin"]
    folder.mkdir(exist_ok=True)
    subprocess.run([*command, "--data", str(folder)], input=b"secret\n", check=True)
    security = folder / "security"
    if tls:
        ca.cert_pem.write_to_path(str(security / "ca.pem"))
        issued = ca.issue_cert("127.0.0.1")
        issued.private_key_pem.write_to_path(str(security / "key.pem"))
        issued.cert_chain_pems[0].write_to_path(str(security / "certificate.pem"))
    if clients:
        ca.cert_pem.write_to_path(str(security / "clients.pem"))
    return ca


@asynccontextmanager
async def running(folder: Path, bookies: int = 3) -> AsyncIterator[Sandbox]:
    sandbox = Sandbox(folder, bookies)
    await sandbox.start()
    try:
        yield sandbox
    finally:
        with trio.CancelScope(shield=True):
            await sandbox.stop()


def with_login(sandbox: Sandbox, login: str, ca: Path | None = None) -> str:
    suffix = f"?ca={ca}" if ca is not None else ""
    return sandbox.cluster.replace("://", f"://{login}@") + suffix


async def quire(
    cluster: str, *words: str, given: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "ledger_client", *words, "--cluster", cluster]
    return await trio.run_process(
        command, stdin=given, capture_stdout=True, capture_stderr=True, check=False
    )


@pytest.mark.slow
@pytest.mark.real_processes
async def test_a_cluster_with_tls_and_users_does_all_the_others_do(tmp_path: Path) -> None:
    """TB-52: TLS and user:password; also between bookies, which repair what one missed."""
    prepare(tmp_path)
    async with running(tmp_path) as sandbox:
        assert sandbox.cluster.startswith("bookie+tls://")
        cluster = with_login(sandbox, "alice:secret", tmp_path / "security" / "ca.pem")
        done = await quire(cluster, "topic", "create", "shop/orders", "--replication", "3")
        assert done.returncode == 0, done.stderr
        done = await quire(cluster, "produce", "shop/orders", given=b"one\ntwo\n")
        assert done.returncode == 0, done.stderr
        done = await quire(cluster, "read", "shop/orders")
        assert done.returncode == 0, done.stderr
        with never_twice():
            assert done.stdout == b"one\ntwo\n"
        await _heal(sandbox, cluster)


async def _heal(sandbox: Sandbox, cluster: str) -> None:
    """Let a bookie miss entries, and see that the others, who must log in, give it them."""
    victim = sandbox.bookies[1]
    command = sandbox.kill(victim)
    async with ledger_client.connect(cluster) as client:
        async with client.ledgers.create(2, 2, 1) as ledger:
            await ledger.append_many([b"x" * 100] * 1000)
        await sandbox.restart(victim, command)
        with never_twice():
            async with client.ledgers.open(ledger.id) as reader:
                assert len(await reader.read(0, 999)) == 1000
    done = await quire(cluster, "cluster", "status", "--json")
    assert done.returncode == 0, done.stderr
    assert b'"leader":""' not in done.stdout.replace(b" ", b"")


@pytest.mark.slow
async def test_who_is_not_let_in_is_told_why_in_one_line(tmp_path: Path) -> None:
    prepare(tmp_path)
    ca = tmp_path / "security" / "ca.pem"
    async with running(tmp_path, 1) as sandbox:
        plain = sandbox.cluster.replace("+tls", "")
        for cluster, why in (
            (with_login(sandbox, "alice:wrong", ca), b"refuses user 'alice'"),
            (with_login(sandbox, "bob:secret", ca), b"refuses user 'bob'"),
            (f"{sandbox.cluster}?ca={ca}", b"wants a login"),
            (with_login(sandbox, "alice:secret"), b"the authority that signed it"),
            (plain, b"it speaks TLS; name it as bookie+tls://"),
        ):
            done = await quire(cluster, "topic", "list")
            assert done.returncode == (2 if cluster == plain else 1), cluster
            assert why in done.stderr
            *waits, _ = done.stderr.splitlines()  # a busy machine takes its time to say so
            assert all(b"waiting for the cluster" in line for line in waits)
            assert b"secret" not in done.stderr


@pytest.mark.slow
async def test_a_bookie_may_want_the_callers_certificate(tmp_path: Path) -> None:
    ca = prepare(tmp_path, clients=True)
    mine = ca.issue_cert("127.0.0.1")
    mine.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "mine.pem"))
    trusted = tmp_path / "security" / "ca.pem"
    async with running(tmp_path, 1) as sandbox:
        cluster = with_login(sandbox, "alice:secret", trusted)
        done = await quire(cluster, "topic", "list")
        assert done.returncode != 0
        done = await quire(f"{cluster}&cert={tmp_path / 'mine.pem'}", "topic", "list")
        assert done.returncode == 0, done.stderr


@pytest.mark.slow
async def test_a_wrong_password_is_an_error_of_its_own(tmp_path: Path) -> None:
    prepare(tmp_path, tls=False)
    async with (
        running(tmp_path, 1) as sandbox,
        ledger_client.connect(with_login(sandbox, "alice:wrong")) as client,
    ):
        with pytest.raises(AccessDenied, match="alice"):
            await client.cluster.bookies()
