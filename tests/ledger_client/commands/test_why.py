from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from memory_cluster import MemoryCluster, memory_cluster

from ledger_client import Client, Options
from ledger_client.__main__ import quire
from ledger_client.commands.outcome import conclude
from ledger_client.commands.topic import why as command
from metadata.outcome import Exit

TOPIC = "shop/orders"
QUICK = Options(read_timeout_s=0.5)
Prepare = Callable[[MemoryCluster, Client], object]


class Shown:
    """The output of the command after the preparations of a test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys
        self.code = -1
        self.out = self.err = ""

    def run(self, *words: str, killed: tuple[str, ...] = (), timesync: bool = False) -> Shown:
        """Send three messages with keys, kill bookies, and run the command in that cluster."""

        @asynccontextmanager
        async def connect(_url: str) -> AsyncIterator[Client]:
            async with memory_cluster(2) as cluster, cluster.client(QUICK) as client:
                if timesync:
                    cluster.lead("b1", has_ticks=True)
                await client.topics.create(TOPIC, timesync=timesync)
                async with client.producer(TOPIC, producer_name="till") as producer:
                    for number in range(3):
                        await producer.send(b"v%d" % number, key=b"k%d" % (number % 2))
                for name in killed:
                    cluster.kill(name)
                yield client

        self._monkeypatch.setattr(command, "connect", connect)
        self.code = conclude(quire, ["topic", "why", TOPIC, *words])
        self.out, self.err = self._capsys.readouterr()
        return self


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shown:
    return Shown(monkeypatch, capsys)


def test_a_message_is_shown_with_its_place_and_copies(shown: Shown) -> None:
    lines = shown.run("2:2:-1").out.splitlines()
    assert (shown.code, shown.err) == (Exit.DONE, "")
    assert lines[0] == "2:2:-1: readable"
    rows = {line[:17].rstrip(): line[17:] for line in lines[1:]}
    assert list(rows) == ["because", "place", "ledger", "message", "copies", "kept"]
    assert rows["because"] == "entry 2 is acknowledged, and readers get it"
    assert rows["place"] == "lane 1, version 2"
    assert rows["ledger"].startswith("2, number 0 of its lane, closed at 20")
    assert rows["ledger"].endswith("with entry 4 as the last one that readers get")
    assert rows["message"].startswith("key k1, 2 B, sent 20")
    assert rows["message"].endswith("by till as number 1")
    assert rows["copies"] == "b1 sound, b2 sound"
    assert rows["kept"].startswith("records for 6 h what named producers sent, until 20")


def test_json_has_ids_as_text_and_keys_as_other_commands_print_them(shown: Shown) -> None:
    found = json.loads(shown.run("2:2:-1", "--json").out)
    assert (found["message_id"], found["verdict"], found["waits_for"]) == ("2:2:-1", "readable", "")
    assert found["message"]["key"] == "k1"
    assert found["copies"] == [
        {"bookie_id": "b1", "state": "sound", "reason": ""},
        {"bookie_id": "b2", "state": "sound", "reason": ""},
    ]
    assert (found["ledger"]["state"], found["first_left"]) == ("closed", None)


def test_a_message_with_a_timestamp_is_shown_with_its_standing_to_ticks(shown: Shown) -> None:
    """MV-20, MV-36: as text and as JSON."""
    text = shown.run("--key", "k0", timesync=True).out
    assert "\nby timestamp     readers in the order of timestamps " in text
    (found,) = json.loads(shown.run("--key", "k0", "--json", timesync=True).out)["messages"]
    is_reached = (found["ticks"]["timestamp"] or 0) >= found["message"]["timestamp"]
    assert found["ticks"]["is_reached"] == is_reached
    assert set(found["ticks"]) >= {"why", "holder", "partition", "lane", "silent_s", "writer"}


def test_an_open_question_ends_with_its_own_code(shown: Shown) -> None:
    found = shown.run("2:2:-1", killed=("b1", "b2"))
    assert (found.code, found.err) == (Exit.FAILED, "")
    assert found.out.splitlines()[0] == "2:2:-1: unknown"
    assert "a reader awaits  an answer of b1, b2: start them" in found.out
    assert shown.run("2:99:-1").code == Exit.DONE


def test_the_newest_message_of_a_key_is_shown(shown: Shown) -> None:
    lines = shown.run("--key", "k0").out.splitlines()
    assert shown.code == Exit.DONE
    assert lines[0] == "key k0: in 1 lane of the topic"
    assert lines[1].startswith("searched         ")
    assert lines[2:4] == ["", "2:3:-1:0: readable"]
    found = json.loads(shown.run("--key-base64", "azA=", "--json").out)
    assert (found["key"], found["partitions"], found["newest"]) == ("k0", [-1], ["2:3:-1:0"])
    assert [each["message_id"] for each in found["messages"]] == ["2:3:-1:0"]
    assert (found["unread"], found["messages"][0]["verdict"]) == ([], "readable")


def test_keys_that_are_no_text_are_shown_in_base64(shown: Shown) -> None:
    assert shown.run("--key-base64", "/w==").out.startswith("key /w== (base64): no message")
    assert shown.run("--key", "\udcff").out == shown.run("--key-base64", "/w==").out
    assert shown.run("--key", "a\n\x1b[0m").out.startswith("key YQobWzBt (base64): no message")


def test_a_key_without_messages_is_told_with_what_was_searched(shown: Shown) -> None:
    found = shown.run("--key", "other")
    assert (found.code, found.out.splitlines()) == (
        Exit.DONE,
        ["key other: no message of the topic", "searched         3 messages"],
    )
    short = shown.run("--key", "other", "--limit", "1")
    assert short.code == Exit.FAILED
    assert short.out.startswith("key other: none found, and not all was searched, of the topic")
    assert "not searched     the rest of lane 1: the search ended after" in short.out
    assert shown.run("--key", "k0", "--since", "2100-01-01T00:00Z").out.startswith(
        "key k0: no message"
    )


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "name one message"),
        (("2:2:-1", "--key", "k"), "name one message"),
        (("--key", "k", "--key-base64", "aw=="), "name one message"),
        (("--key-base64", "?"), "'?' is not base64"),
        (("2:2:-1", "--partition", "1"), "--partition and --since are for --key"),
        (("--key", "k", "--partition", "7"), "there is no partition 7"),
    ],
)
def test_words_that_name_no_message_are_refused(
    shown: Shown, words: tuple[str, ...], told: str
) -> None:
    found = shown.run(*words)
    assert (found.code, found.out) == (Exit.USAGE, "")
    assert told in found.err


def test_an_id_that_is_none_is_refused(shown: Shown) -> None:
    found = shown.run("seven")
    assert (found.code, found.out) == (Exit.USAGE, "")
    assert "'seven' is not a message id" in found.err
    assert "quire read --json" in found.err


def test_a_topic_that_does_not_exist_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @asynccontextmanager
    async def connect(_url: str) -> AsyncIterator[Client]:
        async with memory_cluster(1) as cluster, cluster.client(QUICK) as client:
            yield client

    monkeypatch.setattr(command, "connect", connect)
    assert conclude(quire, ["topic", "why", "shop/bills", "1:1:-1"]) == Exit.FAILED
    assert "quire: topic shop/bills: no such topic" in capsys.readouterr().err
