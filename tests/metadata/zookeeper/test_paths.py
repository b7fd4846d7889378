from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from metadata.topics import lane_key, lane_ledger_key
from metadata.zookeeper.paths import (
    KEYS,
    LIVES_COUNT,
    Place,
    children_of,
    held_name,
    held_path,
    leaf_path,
    lives_path,
    parents,
)

PRINTABLE = st.text(min_size=1, max_size=40).filter(str.isprintable)


@pytest.mark.parametrize(
    ("key", "path"),
    [
        ("topics/shop/orders", "topics:/shop:/=orders"),
        ("jobs/3f9a/b", "jobs:/3f9a:/=b"),
        ("coordinator", "=coordinator"),
        ("ledgers/", "=ledgers:"),
        (lane_key(12, 0, 0), "lanes:/000000000000/0000/0012:000000/0001:000000/=0000"),
        (
            lane_ledger_key(12, 0, 0, 7),
            "lane-ledgers:/000000000000/0000/0012:000000/0001:000000/0000:000000000000/0000/=0007",
        ),
        ("a:b=c/é.", "a%3Ab%3Dc:/=%C3%A9."),
        (".", "=."),
        ("../..", "..:/=.."),
    ],
)
def test_a_key_lies_in_folders_that_stay_narrow(key: str, path: str) -> None:
    assert leaf_path(KEYS, key) == f"{KEYS}/{path}"


@given(PRINTABLE)
def test_a_walk_down_to_a_node_finds_its_key(key: str) -> None:
    place = Place("", KEYS, is_leaf=False)
    names = leaf_path(KEYS, key).removeprefix(f"{KEYS}/").split("/")
    for name in names:
        assert not place.is_leaf
        (place,) = children_of(place, [name])
        assert key.startswith(place.text)
    assert place == Place(key, leaf_path(KEYS, key), is_leaf=True)


@given(st.lists(PRINTABLE | st.from_regex(r"[a-z/]{0,3}[0-9]{3,20}/?[0-9a]{0,12}", fullmatch=True)))
def test_different_keys_have_different_nodes_and_no_key_is_a_folder(keys: list[str]) -> None:
    keys = [key for key in keys if key]
    paths = {leaf_path(KEYS, key) for key in keys}
    assert len(paths) == len(set(keys))
    assert paths.isdisjoint(folder for path in paths for folder in parents(path))


@given(PRINTABLE)
def test_zookeeper_takes_every_path(key: str) -> None:
    path = leaf_path(KEYS, key)
    assert path.isascii() and path.isprintable()
    assert not {"", ".", ".."} & set(path.split("/")[1:])


def test_a_folder_of_numbers_holds_ten_thousand_at_most() -> None:
    folders: dict[str, set[str]] = {}
    for number in (*range(0, 200_000, 7), 10**12, 10**19):
        path = leaf_path(KEYS, f"underreplicated/{number:020d}")
        for above in (*parents(path), path):
            folder, _, name = above.rpartition("/")
            folders.setdefault(folder, set()).add(name)
    assert max(map(len, folders.values())) <= 10_000


def test_the_folders_above_a_node_come_from_the_top() -> None:
    assert parents("/quire/keys/=a") == ["/quire", "/quire/keys"]
    assert parents("/a") == []


def test_a_lease_is_found_by_its_name_in_the_folder_of_its_session() -> None:
    path = held_path(7, "writers/a b/é:1")
    assert path.rpartition("/")[0] == held_path(7)
    assert held_name(path.rpartition("/")[2]) == "writers/a b/é:1"


def test_lives_are_spread_over_a_fixed_number_of_nodes() -> None:
    found = {lives_path(leaf_path(KEYS, f"k{number}")) for number in range(3000)}
    assert 2000 < len(found) <= LIVES_COUNT
