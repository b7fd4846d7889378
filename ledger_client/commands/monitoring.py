"""``quire monitoring``: write configuration for Prometheus and Grafana."""

from __future__ import annotations

import ipaddress
import os
import re
import shlex
import socket
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

import click
import msgspec
import trio

from ledger_client.client import connect
from ledger_client.commands import options
from ledger_client.commands.outcome import finish
from ledger_client.errors import BadAddress
from metadata.address import Address, parse_address
from metadata.records import BookieRecord

PACKAGE = "grafana"
FILES = ("prometheus.yml", "alerts.yml", "alerts_test.yml", "dashboards", "provisioning")
FOLDER_MARK = "${QUIRE_MONITORING}"
PROMETHEUS = "http://127.0.0.1:9090"
TARGETS = "targets/bookies.json"


class ScrapeTarget(msgspec.Struct, frozen=True):
    """Pages to scrape, in the form of Prometheus's file-based service discovery."""

    targets: list[str]
    labels: dict[str, str] = {}


class PageParam(click.ParamType[str]):
    """HOST:PORT of a metrics page."""

    name = "address"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """Return the text, if it has both."""
        text = str(value)
        if not _is_page(text):
            self.fail(f"{text!r} is not HOST:PORT", param, ctx)
        return text


class PrometheusParam(click.ParamType[SplitResult]):
    """The URL of a Prometheus."""

    name = "url"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> SplitResult:
        """Parse the URL."""
        text = str(value)
        if not _is_web_url(text):
            self.fail(f"{text!r} is not a URL such as {PROMETHEUS}", param, ctx)
        return urlsplit(text)


def _is_page(text: str) -> bool:
    try:
        return str(parse_address(text)) == text  # not if the port was left out
    except BadAddress:
        return False


_STRAY = re.compile(r"[\s\"'\x00-\x1f]")


def _is_web_url(text: str) -> bool:
    try:
        url = urlsplit(text)
        has_port = url.port != 0
    except ValueError:
        return False
    is_web = url.scheme in ("http", "https") and bool(url.hostname)
    return is_web and has_port and not _STRAY.search(text)


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--targets",
    "files",
    type=click.Path(path_type=Path, dir_okay=False),
    multiple=True,
    metavar="FILE",
    help="Scrape the bookies listed in FILE, which Prometheus watches, such as DIR/targets.json "
    "of `bookie standalone`. The cluster is not asked then.",
)
@click.option(
    "--client",
    "clients",
    type=PageParam(),
    multiple=True,
    metavar="HOST:PORT",
    help="Also scrape the metrics of a client here. May be repeated.",
)
@click.option(
    "--prometheus",
    type=PrometheusParam(),
    default=PROMETHEUS,
    show_default=True,
    metavar="URL",
    help="Address of Prometheus, for Grafana, and for Prometheus itself if it runs on this host.",
)
@options.cluster
def monitoring(
    *,
    folder: Path,
    files: tuple[Path, ...],
    clients: tuple[str, ...],
    prometheus: SplitResult,
    cluster: str,
) -> None:
    """Write configuration for Prometheus and Grafana to DIR.

    It contains dashboards, alerts and scrape targets. Targets are the bookies registered now,
    and those of the former run that are down; run it again after adding some. Files in DIR are
    overwritten, except for targets/clients.json, which only --client replaces.

    Prints the commands that start both programs.
    """
    trio.run(finish, partial(_write, folder.absolute(), files, clients, prometheus, cluster))


async def _write(
    folder: Path,
    files: Sequence[Path],
    clients: Sequence[str],
    prometheus: SplitResult,
    cluster: str,
) -> None:
    bookies, lost = list[BookieRecord](), list[str]()
    if not files:
        async with connect(cluster) as client:
            bookies, lost = await client.cluster.bookies(), (await client.cluster.status()).lost
    replaced = {FOLDER_MARK: _in_yaml(folder), PROMETHEUS: prometheus.geturl()}
    _copy_all(folder, replaced | _scraped(files))
    (folder / "targets").mkdir(exist_ok=True)
    if not files:
        targets = [*map(_target, filter(_has_page, bookies)), *_kept(folder / TARGETS, lost)]
        _put_targets(folder / TARGETS, targets)
        lost = sorted({*lost} - {each.labels.get("bookie") for each in targets})
    known = folder / "targets" / "clients.json"
    if clients or not known.exists():
        _put_targets(known, [ScrapeTarget([client]) for client in clients])
    _warn([bookie.bookie_id for bookie in bookies if not _has_page(bookie)], lost)
    _show(folder, prometheus)


def _copy_all(folder: Path, replaced: dict[str, str]) -> None:
    """Copy the packaged files to *folder*, replacing these words in them."""
    source = resources.files(PACKAGE)
    for name in FILES:
        _copy(source / name, folder / name, replaced)


def _copy(source: Traversable, target: Path, replaced: dict[str, str]) -> None:
    if source.is_dir():
        for each in source.iterdir():
            _copy(each, target / each.name, replaced)
        return
    text = source.read_text(encoding="utf-8")
    for word, ours in replaced.items():
        text = text.replace(word, ours)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")


def _in_yaml(folder: Path) -> str:
    """Write *folder* within double quotes of YAML, and so that Grafana replaces nothing in it."""
    return msgspec.json.encode(str(folder)).decode()[1:-1].replace("$", "$$")


def _scraped(files: Sequence[Path]) -> dict[str, str]:
    """Return the replacement for the file of targets in prometheus.yml."""
    if not files:
        return {}
    names = [msgspec.json.encode(os.fspath(file.absolute())).decode() for file in files]
    return {f"[{TARGETS}]": f"[{', '.join(names)}]"}


def _has_page(bookie: BookieRecord) -> bool:
    return bool(bookie.metrics_port)


def _target(bookie: BookieRecord) -> ScrapeTarget:
    host = bookie.address.rpartition(":")[0]
    return ScrapeTarget([f"{host}:{bookie.metrics_port}"], {"bookie": bookie.bookie_id})


def _kept(path: Path, lost: Collection[str]) -> list[ScrapeTarget]:
    """Return the targets of lost bookies in a file of an earlier run.

    Without them the alert that such a bookie is down would end, and it would not be scraped when
    it is back.
    """
    try:
        known = msgspec.json.decode(path.read_bytes(), type=list[ScrapeTarget])
    except (FileNotFoundError, msgspec.DecodeError):
        return []
    return [each for each in known if each.labels.get("bookie") in lost]


def _put_targets(path: Path, targets: Iterable[ScrapeTarget]) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(list(targets))) + b"\n")


def _warn(pageless: Sequence[str], lost: Sequence[str]) -> None:
    if lost:
        warning = f"quire: not scraped, as they are down: {', '.join(lost)} (then run this again)"
        click.echo(warning, err=True)
    if pageless:
        names = ", ".join(pageless)
        warning = f"quire: not scraped, as they serve no metrics: {names} (set metrics_port)"
        click.echo(warning, err=True)


def _show(folder: Path, prometheus: SplitResult) -> None:
    """Print the commands that start both, or only Grafana's if the other runs elsewhere."""
    listen = _listen_address(prometheus)
    if listen is None:
        file = shlex.quote(f"{folder}/prometheus.yml")
        needs = f"quire: start Prometheus so that it serves {prometheus.geturl()}, with {file}"
        click.echo(needs, err=True)
    else:
        _echo_command(
            "prometheus",
            f"--config.file={folder}/prometheus.yml",
            f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address={listen}",
        )
    _echo_command(
        "grafana",
        "server",
        "--homepath",
        "/usr/share/grafana",
        f"cfg:paths.provisioning={folder}/provisioning",
        f"cfg:paths.data={folder}/grafana",
    )


def _echo_command(*words: str) -> None:
    click.echo(shlex.join(words))


def _listen_address(prometheus: SplitResult) -> str | None:
    """Return where a Prometheus of this host listens to be found at the URL.

    `None` if the host is another one, or the URL is that of a proxy.
    """
    host = prometheus.hostname or ""
    if prometheus.scheme != "http" or prometheus.path.strip("/") or not _is_here(host):
        return None
    return str(Address(host, prometheus.port or 80))


def _is_here(host: str) -> bool:
    """Return True for a name or an address of this host. Asks no name server."""
    if host in ("localhost", socket.gethostname().lower()):
        return True
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
        with socket.socket(family) as tried:
            tried.bind((host, 0))
    except (ValueError, OSError):
        return False
    return True
