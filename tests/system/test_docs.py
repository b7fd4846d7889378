"""The pages of docs/ and README: every command and example runs, every path and link exists.

A fenced block of ``sh`` runs in bash, in the page's own folder and with the page's own cluster, one
after the other; one of ``python`` runs in the page's client, or
alone after ``<!-- program -->``.
Blocks behind ``<!-- spark -->`` need Java. A block that cannot run here says why:
``<!-- not run here: ... -->``.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from textwrap import indent
from typing import NamedTuple

import pytest
from processes import DEADLINE_S, cluster

from ledger_client.groups.options import ConsumerOptions
from ledger_client.options import Options
from ledger_client.topics.reading.options import ReadOptions

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
OPTIONS_OF_CLIENTS = {
    name
    for options in (Options, ConsumerOptions, ReadOptions)
    for name in options.__struct_fields__
}
HOST_MARKS = ("each host", "one host")
"""run by tests/hosts/test_readme.py"""
LONG = {"docs/guides/replay.md", "docs/guides/spark.md"}
"""pages whose programs of Spark the search runs; each commit runs those of the tutorial"""
STANDALONE = "bookie standalone --data ./data --bookies 3"
_BLOCK = re.compile(
    r"(?:^<!-- ([^\n]*) -->\n)?^```(sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
_IN_CLIENT = """
import trio
import ledger_client

async def main() -> None:
    async with ledger_client.connect("{url}") as client:
{body}

trio.run(main)
"""
_IN_SPARK = """
from pyspark.sql import SparkSession
from ledger_client import spark as quire_spark

session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
quire_spark.register(session)
{body}
session.stop()
"""


class Block(NamedTuple):
    mark: str
    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    return [
        Block(mark, language, text) for mark, language, text in _BLOCK.findall(page.read_text())
    ]


def pages_with(*, spark: bool) -> list[Path]:
    return [
        page
        for page in PAGES
        if any(is_run(each) and needs_spark(each) == spark for each in blocks(page))
    ]


def needs_spark(block: Block) -> bool:
    return block.mark == "spark"


def is_run(block: Block) -> bool:
    elsewhere = ("cluster", *HOST_MARKS)
    return not block.mark.startswith("not run here: ") and block.mark not in elsewhere


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def run(block: Block, url: str, folder: Path) -> None:
    text = block.text.replace("bookie://127.0.0.1:3181", url)
    if block.language == "sh":
        command = ["bash", "-euo", "pipefail", "-c", text]
    else:
        command = [sys.executable, "-c", program(block, text, url)]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "QUIRE_CLUSTER": url, "PATH": path},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"


def program(block: Block, text: str, url: str) -> str:
    if block.mark == "in client":
        return _IN_CLIENT.format(url=url, body=indent(text, " " * 8))
    if block.mark == "spark" and "SparkSession" not in text:
        return _IN_SPARK.format(body=text)
    return text


def prepare(url: str, folder: Path) -> None:
    """Topics that some pages take for granted."""
    text = "for t in orders copy; do quire topic create shop/$t >/dev/null 2>&1 || true; done"
    run(Block("", "sh", text), url, folder)


@pytest.mark.slow
@pytest.mark.parametrize("page", pages_with(spark=False), ids=name)
def test_what_a_page_shows_runs_as_it_stands(page: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "data").symlink_to(tmp_path)  # as STANDALONE names it
    with cluster(tmp_path, 3) as url:
        for block in blocks(page):
            if is_run(block) and not needs_spark(block):
                run(block, url, work)


@pytest.mark.slow
@pytest.mark.real_processes
@pytest.mark.xdist_group("spark")
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.long] if name(page) in LONG else [])
        for page in pages_with(spark=True)
    ],
    ids=name,
)
def test_what_a_page_shows_of_spark_runs_as_it_stands(page: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    with cluster(tmp_path, 3) as url:
        for block in blocks(page):
            if block.language == "sh" and is_run(block) and not needs_spark(block):
                run(block, url, work)
        prepare(url, work)
        for block in blocks(page):
            if needs_spark(block):
                run(block, url, work)


@pytest.mark.facts
def test_a_block_that_is_not_run_says_why() -> None:
    marks = {each.mark for page in PAGES for each in blocks(page)}
    reasons = {mark for mark in marks if mark.startswith("not run here: ")}
    assert marks - reasons <= {"", "cluster", "program", "in client", "spark", *HOST_MARKS}
    assert len(reasons) <= 4


@pytest.mark.facts
def test_the_command_that_starts_a_cluster_is_the_one_that_tests_use() -> None:
    texts = {each.text.strip() for page in PAGES for each in blocks(page) if each.mark == "cluster"}
    assert texts == {STANDALONE}


@pytest.mark.facts
@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    named = re.findall(
        r"`((?:bookie|docs|grafana|ledger_client|metadata|native|tests)/[\w/.]*)`", page.read_text()
    )
    assert [each for each in named if not (ROOT / each).exists()] == []


@pytest.mark.facts
@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
    local = [link for link in links if "://" not in link]
    assert [link for link in local if not (page.parent / link).exists()] == []


@pytest.mark.facts
@pytest.mark.slow
def test_the_pages_are_built_without_a_warning(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "--site-dir",
        str(tmp_path),
    ]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    commands = (tmp_path / "reference/commands/index.html").read_text()
    assert "quire topic create" in commands
    assert "generated:" not in commands
    assert "journal_folder" in (tmp_path / "reference/settings/index.html").read_text()
    assert "torn tail" in (tmp_path / "reference/formats/index.html").read_text()
    assert "GroupConsumer" in (tmp_path / "reference/api/index.html").read_text()


@pytest.mark.facts
@pytest.mark.parametrize("page", [each for each in PAGES if each.name != "api.md"], ids=name)
def test_every_setting_that_a_page_names_exists(page: Path) -> None:
    """The API page names arguments, too: tests/test_api_page.py."""
    named = set(re.findall(r"`(\w+_(?:s|rate|folder|port|size))`", page.read_text()))
    settings = set(
        re.findall(r"^(\w+) = ", (ROOT / "bookie/bookie.toml").read_text(), re.MULTILINE)
    )
    assert named - settings - OPTIONS_OF_CLIENTS == set()
