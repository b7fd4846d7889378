"""URLs of ensembles: the addresses of ZooKeepers, and the path of one cluster in them.

    zk://host:2181,host:2181/path
    zk://user@host:2181,host:2181/path?password-file=/run/secrets/zookeeper
    zk+tls://host:2281/path?ca=/path/ca.pem&cert=/path/cert.pem&key=/path/key.pem
    zk://user@host:2181/path?acl=open

Behind the user comes no password, since a command line can be read by every user of a host: it
is in a file, or in the environment variable QUIRE_ZOOKEEPER_PASSWORD. The login is SASL's
DIGEST-MD5. With zk+tls, *ca* names the file of the authorities to trust, *cert* and *key* those of
the caller's own certificate. The path is BookKeeper's zkLedgersRootPath, for example /ledgers.

*acl* says who may use the nodes that are made: "creator", only the same login, which is the default
with a user, or "open", everybody, which is the default without. BookKeeper has the same choice as
zkEnableSecurity, true or false; its default is false. Facts: ZkUtils.getACLs of BookKeeper 4.18.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple, TypedDict
from urllib.parse import parse_qsl, quote, unquote

from metadata.access import Login
from metadata.address import Address, parse_address
from metadata.cluster_url import without_password
from metadata.errors import BadAddress

SCHEMES = {"zk": False, "zk+tls": True}
DEFAULT_PORT = 2181
PASSWORD_VARIABLE = "QUIRE_ZOOKEEPER_PASSWORD"
_FILES = ("ca", "cert", "key")
_PASSWORD_FILE = "password-file"
_ACL = "acl"
_CREATOR, _OPEN = "creator", "open"
_SEPARATORS = re.compile("[,;|]")
"""BookKeeper takes a semicolon, since a comma separates values in its settings."""


class SaslOptions(TypedDict):
    """A login as kazoo takes it."""

    mechanism: str
    username: str
    password: str


class KazooOptions(TypedDict):
    """Arguments of KazooClient for an ensemble."""

    hosts: str
    use_ssl: bool
    sasl_options: SaslOptions | None


class ZooKeeperUrl(NamedTuple):
    """Where a cluster's ensemble is, and how to connect to it. Files are PEM."""

    addresses: list[Address]
    path: str
    """begins with a slash, and ends with none; "" for ZooKeeper's root"""
    tls: bool = False
    files: dict[str, str] = {}  # noqa: RUF012 - never changed
    """ca, cert and key, as far as they are given"""
    login: Login | None = None
    only_creator: bool = False
    """Nodes are made so that only the same login may use them."""

    def __str__(self) -> str:
        """The URL without the password, so that it may be logged."""
        user = f"{quote(self.login.user)}@" if self.login else ""
        hosts = ",".join(map(str, self.addresses))
        return f"{'zk+tls' if self.tls else 'zk'}://{user}{hosts}{self.path}"

    def kazoo_options(self) -> KazooOptions:
        """Return the arguments for a KazooClient, which is to know nothing of the path."""
        sasl = None
        if self.login is not None:
            sasl = SaslOptions(
                mechanism="DIGEST-MD5", username=self.login.user, password=self.login.password
            )
        return KazooOptions(
            hosts=",".join(map(str, self.addresses)),
            use_ssl=self.tls,
            sasl_options=sasl,
        )


def is_zookeeper_url(url: str) -> bool:
    """Return True if the scheme of *url* is zk or zk+tls."""
    return url.partition("://")[0] in SCHEMES and "://" in url


def parse_zookeeper_url(url: str) -> ZooKeeperUrl:
    """Parse the URL of an ensemble, and read the password if there is a user.

    Raises:
        BadAddress: another scheme, no address, a malformed part, a password in the URL, or none
            where one is needed. The message does not contain the password.
    """
    scheme, _, rest = url.partition("://")
    if not is_zookeeper_url(url):
        raise BadAddress(f"{without_password(url)!r} does not start with zk://")
    rest, _, query = rest.partition("?")
    before, at, rest = rest.rpartition("@")
    if ":" in before:
        raise BadAddress(
            "the password stands in a file, ?password-file=/path, or in "
            f"{PASSWORD_VARIABLE}, and not in the URL"
        )
    hosts, slash, path = rest.partition("/")
    if not hosts:
        raise BadAddress(f"{without_password(url)!r} has no address; expected zk://HOST:PORT/path")
    addresses = [_parse_address(text) for text in _SEPARATORS.split(hosts)]
    options = _parse_options(query, tls=SCHEMES[scheme])
    only_creator = _parse_acl(options.pop(_ACL, ""), is_known=bool(at) or "cert" in options)
    password_file = options.pop(_PASSWORD_FILE, "")
    if password_file and not at:
        raise BadAddress("the password-file is without a user: zk://USER@HOST:PORT/path")
    login = Login(unquote(before), _read_password(password_file)) if at else None
    return ZooKeeperUrl(
        list(dict.fromkeys(addresses)),
        _parse_path(slash + path),
        SCHEMES[scheme],
        options,
        login,
        bool(at) if only_creator is None else only_creator,
    )


def _parse_address(text: str) -> Address:
    has_port = text.rpartition(":")[1] and not text.endswith("]")
    return parse_address(text if has_port else f"{text}:{DEFAULT_PORT}")


def _parse_path(path: str) -> str:
    path = path.rstrip("/")
    parts = path.split("/")[1:]
    if not path.isprintable() or any(part in ("", ".", "..") for part in parts):
        raise BadAddress(f"{path!a} is no path in ZooKeeper; expected /name/name")
    if "#" in path or "%" in path:
        raise BadAddress(f"{path!a}: neither # nor % may be in a path; they are taken literally")
    if parts and parts[0] == "zookeeper":
        raise BadAddress("/zookeeper is ZooKeeper's own")
    return path


def _parse_options(query: str, *, tls: bool) -> dict[str, str]:
    try:
        given = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)))
    except ValueError:
        raise BadAddress("what is behind the ? is not name=value&name=value") from None
    for name in given:
        if name not in (*_FILES, _PASSWORD_FILE, _ACL):
            raise BadAddress(
                f"{name!r} behind the ? is unknown; there are ca, cert, key, password-file and acl"
            )
        if name in _FILES and not tls:
            raise BadAddress("certificates are for zk+tls://, and this is zk://")
    if "key" in given and "cert" not in given:
        raise BadAddress("a key is without its certificate: ?cert=FILE&key=FILE")
    return given


def _parse_acl(text: str, *, is_known: bool) -> bool | None:
    """Return True for nodes of the creator's alone, None for the default."""
    if text not in ("", _CREATOR, _OPEN):
        raise BadAddress(f"acl={text!a} is unknown; there are acl={_CREATOR} and acl={_OPEN}")
    if text == _CREATOR and not is_known:
        raise BadAddress(f"acl={_CREATOR} is for those with a user or a certificate")
    return text == _CREATOR if text else None


def _read_password(file: str) -> str:
    if not file:
        found = os.environ.get(PASSWORD_VARIABLE, "")
        if not found:
            raise BadAddress(
                f"the user is without a password: ?password-file=/path or {PASSWORD_VARIABLE}"
            )
        return found
    try:
        found = Path(file).read_text().rstrip("\n")
    except (OSError, UnicodeDecodeError) as wrong:
        raise BadAddress(f"the password-file {file} cannot be read: {wrong}") from wrong
    if not found:
        raise BadAddress(f"the password-file {file} is empty")
    return found
