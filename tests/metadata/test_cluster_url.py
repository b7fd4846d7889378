from __future__ import annotations

import pytest

from ledger_client.wire.stores import open_store
from metadata.access import Access, Login
from metadata.address import Address, format_cluster
from metadata.cluster_url import parse_cluster_url
from metadata.errors import BadAddress


@pytest.mark.parametrize("url", ["bookie://b:1,a,b:1,[::1]:5/", "bookie://b:1|a|b:1|[::1]:5"])
def test_a_cluster_is_a_list_of_addresses_each_once(url: str) -> None:
    """TB-52: several hosts, separated by commas or bars."""
    addresses, access = parse_cluster_url(url)
    assert addresses == [Address("b", 1), Address("a", 3181), Address("::1", 5)]
    assert access == Access()
    assert format_cluster(addresses) == "bookie://b:1,a:3181,[::1]:5"
    assert parse_cluster_url(format_cluster(addresses)).addresses == addresses


def test_a_login_and_certificates_stand_in_the_url() -> None:
    """TB-52: variants with TLS and with user and password."""
    url = parse_cluster_url("bookie+tls://al%40ice:s%3Acr%2Fet@a:1|b?ca=/c.pem&cert=/x.pem&key=/k")
    assert url.addresses == [Address("a", 1), Address("b", 3181)]
    login = Login("al@ice", "s:cr/et")
    assert url.access == Access(tls=True, ca="/c.pem", certificate="/x.pem", key="/k", login=login)


def test_nothing_that_is_printed_has_the_password() -> None:
    url = parse_cluster_url("bookie://alice:secret@a:1")
    assert str(url) == "bookie://alice@a:1"
    assert "secret" not in repr(url)
    with pytest.raises(BadAddress) as wrong:
        parse_cluster_url("http://alice:secret@a:1")
    assert "secret" not in str(wrong.value)


@pytest.mark.parametrize(
    "url",
    [
        "bookie://alice:secret",
        "bookie://alice:secret?x@a:1",
        "bookie://alice:x@y?secret@a:1",
        "bookie://alice:x,secret:y",
        "bokie://alice:s/secret@a:1",
        "bokie://alice:x@secret@a:1",
        "bookie:alice:secret@a:1",
        "BOOKIE://alice:secret@a:1",
    ],
)
async def test_a_mistake_beside_a_password_does_not_print_it(url: str) -> None:
    with pytest.raises(BadAddress) as wrong:
        parse_cluster_url(url)
    assert "secret" not in str(wrong.value)
    with pytest.raises(BadAddress) as wrong:
        async with open_store(url):
            pass
    assert "secret" not in str(wrong.value)


@pytest.mark.parametrize(
    "url",
    [
        "bookie://",
        "bookie:/a",
        "http://a:1",
        "a:1",
        "bookie://a:1,",
        "bookie://a:1,,b:1",
        "bookie://alice@a:1",
        "bookie://:secret@a:1",
        "bookie://a:1?ca=/c.pem",
        "bookie+tls://a:1?wrong=1",
        "bookie+tls://a:1?ca",
    ],
)
def test_what_is_no_cluster_is_refused(url: str) -> None:
    with pytest.raises(BadAddress):
        parse_cluster_url(url)


@pytest.mark.parametrize("url", ["bookie://a:1/b", "bookie+tls://al:secret@a:1/b"])
def test_a_path_is_refused_with_what_to_write(url: str) -> None:
    with pytest.raises(BadAddress, match=r"takes no path, expected bookie.*://host:port") as wrong:
        parse_cluster_url(url)
    assert "secret" not in str(wrong.value)
