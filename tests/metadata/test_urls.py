from __future__ import annotations

from pathlib import Path

import pytest

from metadata.errors import BadAddress, MetadataUnavailable
from metadata.remote import BookieStore
from metadata.sqlite import SqliteStore
from metadata.store import MetadataStore
from metadata.urls import open_store


async def test_a_sqlite_url_opens_a_file_and_closes_it(path: Path) -> None:
    async with open_store(f"sqlite://{path}") as store:
        assert isinstance(store, SqliteStore)
        await store.put("a", b"1")
    with pytest.raises(MetadataUnavailable):
        await store.get("a")


async def test_an_error_inside_comes_out_as_it_is(path: Path) -> None:
    with pytest.raises(KeyError):
        async with open_store(f"sqlite://{path}"):
            raise KeyError


async def test_a_bookie_url_calls_nobody_before_it_is_used() -> None:
    async with open_store("bookie://nowhere.invalid:1") as store:
        assert isinstance(store, BookieStore)


@pytest.mark.parametrize(
    "url", ["", "metadata.db", "/metadata.db", "sqlite://metadata.db", "zk://a", "bookie://"]
)
async def test_any_other_url_is_refused(url: str) -> None:
    with pytest.raises(BadAddress):
        async with open_store(url):
            pass


def test_both_drivers_keep_the_interface() -> None:
    drivers: list[type[MetadataStore]] = [SqliteStore, BookieStore]
    assert len(drivers) == 2
