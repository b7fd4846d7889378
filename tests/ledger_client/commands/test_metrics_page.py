from __future__ import annotations

import re
import socket
import urllib.request

import pytest
import trio
from memory_cluster import memory_cluster

from ledger_client.commands.errors import CommandFailed
from ledger_client.commands.metrics_page import metrics_page


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())


async def test_what_a_client_counts_is_served_while_the_block_lasts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with memory_cluster(1) as cluster, cluster.client() as client:
        client.figures.sending("s/t").messages += 7
        async with metrics_page(client, -1):
            told = re.search(r"http://\S+/metrics", capsys.readouterr().err)
            assert told is not None
            text = await trio.to_thread.run_sync(get, told[0])
        assert 'quire_client_sent_messages_total{topic="s/t"} 7.0' in text
        with pytest.raises(OSError, match="refused"):
            await trio.to_thread.run_sync(get, told[0])


async def test_no_port_is_no_page(capsys: pytest.CaptureFixture[str]) -> None:
    async with memory_cluster(1) as cluster, cluster.client() as client, metrics_page(client, 0):
        assert capsys.readouterr().err == ""


async def test_a_port_that_is_taken_is_named() -> None:
    async with memory_cluster(1) as cluster, cluster.client() as client:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            with pytest.raises(CommandFailed, match=str(port)):
                async with metrics_page(client, port):
                    pass
