from __future__ import annotations

from hypothesis import given, strategies as st

from metadata.prefixes import PrefixTable

WORDS = st.text(alphabet="ab/", max_size=6)


@given(st.lists(st.tuples(st.booleans(), WORDS, st.integers(0, 2))), st.lists(WORDS))
def test_it_finds_the_same_prefixes_as_a_look_at_all_of_them(
    steps: list[tuple[bool, str, int]], keys: list[str]
) -> None:
    table: PrefixTable[int] = PrefixTable()
    held: list[tuple[str, int]] = []
    for is_added, prefix, holder in steps:
        there = [each for each in held if each[0] == prefix]
        if is_added:
            assert table.add(prefix, holder) is not bool(there)
            held.append((prefix, holder))
        else:
            assert table.discard(prefix, holder) is (there == [(prefix, holder)])
            if (prefix, holder) in held:
                held.remove((prefix, holder))
    assert len(table) == len({prefix for prefix, _ in held})
    assert {prefix: sorted(holders) for prefix, holders in table.items()} == {
        prefix: sorted(holder for each, holder in held if each == prefix) for prefix, _ in held
    }
    for key in keys:
        found = [prefix for prefix, _ in table.matching(key)]
        assert found == sorted({prefix for prefix, _ in held if key.startswith(prefix)}, key=len)
