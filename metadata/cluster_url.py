"""URLs of clusters: the addresses of some bookies, with TLS and a login if needed.

    bookie://host:port,host:port
    bookie://user:password@host:port|host:port
    bookie+tls://user:password@host:port?ca=/path/ca.pem

User and password are percent-encoded. Hosts are separated by a comma or a bar. With
bookie+tls, *ca* names the file of the authorities to trust (by default the system's), *cert*
and *key* those of the caller's own certificate.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, unquote

from metadata.access import Access, Login
from metadata.address import Address, parse_address
from metadata.errors import BadAddress

SCHEMES = {"bookie": False, "bookie+tls": True}
_FILES = {"ca": "ca", "cert": "certificate", "key": "key"}
_SEPARATORS = re.compile("[,|]")


class ClusterUrl(NamedTuple):
    """Addresses and access of a cluster."""

    addresses: list[Address]
    access: Access

    def __str__(self) -> str:
        """The URL without the password, so that it may be logged."""
        user = f"{quote(self.access.login.user)}@" if self.access.login else ""
        scheme = "bookie+tls" if self.access.tls else "bookie"
        return f"{scheme}://{user}{','.join(map(str, self.addresses))}"


def is_cluster_url(url: str) -> bool:
    """Return True if the scheme of *url* is bookie or bookie+tls."""
    return url.partition("://")[0] in SCHEMES and "://" in url


def parse_cluster_url(url: str) -> ClusterUrl:
    """Parse a cluster's URL; each address is listed once, in order.

    Raises:
        BadAddress: another scheme, no address, or a malformed part. The message does not
            contain the password.
    """
    scheme, _, rest = url.partition("://")
    if not is_cluster_url(url):
        raise BadAddress(f"{without_password(url)!r} does not start with bookie://")
    rest, _, query = rest.partition("?")
    before, at, listed = rest.rpartition("@")
    if not at and (":" in rest and "@" in query):
        raise BadAddress("a '?' of a user or a password stands as %3F before the @")
    listed = listed.removesuffix("/")
    if "/" in listed:
        raise BadAddress(
            f"{scheme}:// takes no path, expected {scheme}://host:port; a / of a password is %2F"
        )
    texts = _SEPARATORS.split(listed)
    addresses = [_parse_address(text, is_behind_login=bool(at)) for text in texts]
    login = _parse_login(before) if at else None
    access = Access(tls=SCHEMES[scheme], login=login, **_parse_files(query, tls=SCHEMES[scheme]))
    return ClusterUrl(list(dict.fromkeys(addresses)), access)


def _parse_address(text: str, *, is_behind_login: bool) -> Address:
    try:
        return parse_address(text)
    except BadAddress:
        if is_behind_login or ":" not in text or text.startswith("["):
            raise
        host = text.partition(":")[0]  # what follows may be a password whose @ is forgotten
        raise BadAddress(f"'{host}:...' is no address; expected host:port") from None


def _parse_login(text: str) -> Login:
    user, colon, password = text.partition(":")
    if not user or not colon:
        raise BadAddress("before the @ stand user:password; one of them is missing")
    return Login(unquote(user), unquote(password))


def _parse_files(query: str, *, tls: bool) -> Mapping[str, str]:
    try:
        given = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)))
    except ValueError:
        raise BadAddress("what is behind the ? is not name=value&name=value") from None
    for name in given:
        if name not in _FILES:
            raise BadAddress(f"{name!r} behind the ? is unknown; there are ca, cert and key")
    if given and not tls:
        raise BadAddress("certificates are for bookie+tls://, and this is bookie://")
    return {_FILES[name]: value for name, value in given.items()}


def shown(url: str) -> str:
    """Return *url* without the password, to show or to store.

    Raises:
        BadAddress: as parse_cluster_url(), of a cluster's URL.
    """
    return str(parse_cluster_url(url)) if is_cluster_url(url) else url


def without_password(url: str) -> str:
    """Return *url*, which is malformed, without anything that may be a login."""
    before, at, after = url.rpartition("@")
    if not at:
        return url
    scheme, found, _ = before.partition("://")
    return f"{scheme}://...@{after}" if found else f"...@{after}"
