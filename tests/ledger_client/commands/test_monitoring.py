from __future__ import annotations

import json
import re
import shlex
import socket
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pytest
import trio
from click.testing import CliRunner
from memory_cluster import memory_cluster

from ledger_client import Client
from ledger_client.commands import monitoring
from ledger_client.commands.metrics_page import metrics_page
from ledger_client.commands.monitoring import PROMETHEUS, _put_targets, _target
from metadata.outcome import CommandFailed
from metadata.records import CookieRecord, cookie_key, encode_record


def written(folder: Path, *words: str) -> str:
    targets = str(folder / "targets.json")
    done = CliRunner().invoke(
        monitoring.monitoring, [str(folder / "m"), "--targets", targets, *words]
    )
    assert done.exit_code == 0, done.output
    return done.output


def text(folder: Path, name: str) -> str:
    return (folder / "m" / name).read_text()


def test_everything_is_written_with_its_own_folder_in_it(tmp_path: Path) -> None:
    written(tmp_path)
    names = {str(p.relative_to(tmp_path / "m")) for p in (tmp_path / "m").rglob("*") if p.is_file()}
    assert names == {
        "prometheus.yml",
        "alerts.yml",
        "alerts_test.yml",
        *(f"dashboards/{name}.json" for name in ("bookies", "topics", "groups", "cluster", "jobs")),
        "provisioning/dashboards/quire.yml",
        "provisioning/datasources/quire.yml",
        "targets/clients.json",
    }
    assert f'path: "{tmp_path}/m/dashboards"' in text(tmp_path, "provisioning/dashboards/quire.yml")


def test_a_file_of_targets_is_scraped_instead_of_what_the_cluster_says(tmp_path: Path) -> None:
    written(tmp_path)
    assert f'files: ["{tmp_path}/targets.json"]' in text(tmp_path, "prometheus.yml")


def test_grafana_is_told_where_prometheus_is(tmp_path: Path) -> None:
    written(tmp_path, "--prometheus", "http://metrics:9999")
    source = text(tmp_path, "provisioning/datasources/quire.yml")
    assert "url: http://metrics:9999" in source
    assert PROMETHEUS not in source


def test_clients_that_are_named_stay_until_others_are(tmp_path: Path) -> None:
    for words, expected in (
        ([], []),
        (["--client", "h:1", "--client", "h:2"], ["h:1", "h:2"]),
        ([], ["h:1", "h:2"]),
        (["--client", "h:3"], ["h:3"]),
    ):
        written(tmp_path, *words)
        told = json.loads(text(tmp_path, "targets/clients.json"))
        assert [address for group in told for address in group["targets"]] == expected


def test_it_says_how_to_start_both(tmp_path: Path) -> None:
    lines = written(tmp_path).splitlines()
    assert [re.match(r"\w+", line)[0] for line in lines] == ["prometheus", "grafana"]  # type: ignore[index]
    assert all(str(tmp_path / "m") in line for line in lines)


@pytest.mark.parametrize(
    ("url", "address"),
    [
        (PROMETHEUS, "127.0.0.1:9090"),
        ("http://127.0.0.2:9999/", "127.0.0.2:9999"),
        ("http://localhost", "localhost:80"),
        ("http://0.0.0.0:9999", "0.0.0.0:9999"),
        ("http://192.0.2.1:9999", None),  # kept for documentation: nobody's
        ("http://metrics.invalid:9999", None),
        ("https://127.0.0.1:9999", None),
        ("http://127.0.0.1:9999/prometheus", None),
    ],
)
def test_prometheus_listens_where_grafana_looks_for_it_or_is_elsewhere(
    tmp_path: Path, url: str, address: str | None
) -> None:
    told = written(tmp_path, "--prometheus", url)
    started = [line for line in told.splitlines() if line.startswith("prometheus ")]
    if address is None:
        assert started == []
        assert f"quire: start Prometheus so that it serves {url}, with {tmp_path}/m/" in told
    else:
        assert started[0].endswith(f" --web.listen-address={address}")


def test_a_folder_of_any_name_is_quoted(tmp_path: Path) -> None:
    folder = tmp_path / 'my $HOME\'s: "#1"'
    folder.mkdir()
    words = [word for line in written(folder).splitlines() for word in shlex.split(line)]
    assert f"--config.file={folder}/m/prometheus.yml" in words
    assert f"cfg:paths.provisioning={folder}/m/provisioning" in words
    [path] = re.findall(r"path: (.+)", text(folder, "provisioning/dashboards/quire.yml"))
    # JSON is YAML, too.
    assert json.loads(path) == f"{folder}/m/dashboards".replace(
        "$", "$$"
    )  # Grafana makes that one again


@pytest.mark.parametrize(
    "words",
    [
        ("--client", "nonsense no port"),
        ("--client", "h"),
        ("--client", "h:0"),
        ("--client", "http://h:1"),
        ("--prometheus", "h:9090"),
        ("--prometheus", "http://:9090"),
        ("--prometheus", "http://h:99999"),
        ("--prometheus", "http://h:1 # x"),
    ],
)
def test_what_is_no_address_is_refused(tmp_path: Path, words: tuple[str, str]) -> None:
    command = [str(tmp_path / "m"), "--targets", "t.json", *words]
    done = CliRunner().invoke(monitoring.monitoring, command)
    assert done.exit_code == 2
    assert words[1] in done.output
    assert not (tmp_path / "m").exists()


async def test_registered_bookies_are_targets_by_host_and_page(tmp_path: Path) -> None:
    async with memory_cluster(2) as cluster, cluster.client() as client:
        leases = cluster.store.bookies
        leases["b1"] = msgspec.structs.replace(leases["b1"], address="[::1]:5", metrics_port=7)
        bookies = await client.cluster.bookies()
    _put_targets(tmp_path / "t.json", [_target(bookies[0])])
    assert json.loads((tmp_path / "t.json").read_text()) == [
        {"targets": ["[::1]:7"], "labels": {"bookie": "b1"}}
    ]
    assert not monitoring._has_page(bookies[1])


def test_bookies_that_are_not_scraped_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    monitoring._warn(["b7"], ["b8", "b9"])
    told = capsys.readouterr().err
    assert "no metrics: b7" in told
    assert "down: b8, b9" in told


async def test_a_bookie_that_is_down_stays_a_target_until_it_is_decommissioned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The alert about it would end, and nobody would see it when it is back."""
    async with memory_cluster(3) as cluster, cluster.client() as client:
        leases = cluster.store.bookies
        for number, name in enumerate(cluster.bookies):
            cookie = CookieRecord(name, "i", "/journal", "/ledgers", "c")
            await cluster.store.put(cookie_key(name), encode_record(cookie))
            leases[name] = msgspec.structs.replace(leases[name], metrics_port=number + 1)

        @asynccontextmanager
        async def connected(_cluster: str) -> AsyncIterator[Client]:
            yield client

        async def targets() -> list[str]:
            await monitoring._write(tmp_path, (), (), urlsplit(PROMETHEUS), "")
            told = json.loads((tmp_path / "targets/bookies.json").read_text())
            return sorted(each["labels"]["bookie"] for each in told)

        monkeypatch.setattr(monitoring, "connect", connected)
        assert await targets() == ["b1", "b2", "b3"]
        del leases["b2"]
        assert await targets() == ["b1", "b2", "b3"]
        cluster.store.values.pop(cookie_key("b2"))
        assert await targets() == ["b1", "b3"]


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())


async def test_what_a_client_counts_is_served_while_the_block_lasts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with memory_cluster(1) as cluster, cluster.client() as client:
        client._context.figures.sending("s/t").messages += 7
        async with metrics_page(lambda: client.metrics, -1):
            told = re.search(r"http://\S+/metrics", capsys.readouterr().err)
            assert told is not None
            text = await trio.to_thread.run_sync(get, told[0])
        assert 'quire_client_sent_messages_total{topic="s/t"} 7.0' in text
        with pytest.raises(OSError, match="refused"):
            await trio.to_thread.run_sync(get, told[0])


async def test_no_port_is_no_page(capsys: pytest.CaptureFixture[str]) -> None:
    async with (
        memory_cluster(1) as cluster,
        cluster.client() as client,
        metrics_page(lambda: client.metrics, 0),
    ):
        assert capsys.readouterr().err == ""


async def test_a_port_that_is_taken_is_named() -> None:
    async with memory_cluster(1) as cluster, cluster.client() as client:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            with pytest.raises(CommandFailed, match=str(port)):
                async with metrics_page(lambda: client.metrics, port):
                    pass
