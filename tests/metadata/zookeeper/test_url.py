from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from metadata.access import Login
from metadata.address import Address
from metadata.errors import BadAddress
from metadata.zookeeper.attempts import tls_context
from metadata.zookeeper.url import PASSWORD_VARIABLE, is_zookeeper_url, parse_zookeeper_url


def test_hosts_and_path_are_taken_apart() -> None:
    url = parse_zookeeper_url("zk://a:1,b|[::1]:3;c/ledgers/")
    four = [Address("a", 1), Address("b", 2181), Address("::1", 3), Address("c", 2181)]
    assert url.addresses == four
    assert (url.path, url.tls, url.login) == ("/ledgers", False, None)
    assert str(url) == "zk://a:1,b:2181,[::1]:3,c:2181/ledgers"
    assert parse_zookeeper_url("zk://a").path == parse_zookeeper_url("zk://a/").path == ""


def test_a_password_comes_from_a_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "password"
    file.write_text("s3cret\n")
    url = parse_zookeeper_url(f"zk://me@a/x?password-file={file}")
    assert url.login == Login("me", "s3cret")
    assert "s3cret" not in f"{url!s} {url!r}"
    monkeypatch.setenv(PASSWORD_VARIABLE, "other")
    assert parse_zookeeper_url("zk://me@a/x").login == Login("me", "other")
    assert parse_zookeeper_url("zk://me@a/x").kazoo_options()["sasl_options"] == {
        "mechanism": "DIGEST-MD5",
        "username": "me",
        "password": "other",
    }


def test_certificates_are_for_tls_and_must_be_files() -> None:
    url = parse_zookeeper_url("zk+tls://a/x?ca=/ca&cert=/c&key=/k")
    assert url.files == {"ca": "/ca", "cert": "/c", "key": "/k"}
    options = url.kazoo_options()
    assert (options["use_ssl"], options["hosts"]) == (True, "a:2181")
    with pytest.raises(BadAddress, match=r"/ca, /c, /k: .*No such file"):
        tls_context(url)
    assert tls_context(parse_zookeeper_url("zk://a/x")) is None


def test_the_certificate_and_the_host_name_of_a_zookeeper_are_checked() -> None:
    context = tls_context(parse_zookeeper_url("zk+tls://a/x"))
    assert context is not None
    assert (context.check_hostname, context.verify_mode) == (True, ssl.CERT_REQUIRED)


@pytest.mark.parametrize(
    ("url", "only_creator"),
    [
        ("zk://a/x", False),
        ("zk://me@a/x", True),
        ("zk://me@a/x?acl=open", False),
        ("zk+tls://a/x?cert=/c", False),
        ("zk+tls://a/x?cert=/c&acl=creator", True),
    ],
)
def test_with_a_login_nodes_are_the_creators_alone_unless_they_are_open(
    url: str, only_creator: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PASSWORD_VARIABLE, "s3cret")
    assert parse_zookeeper_url(url).only_creator == only_creator


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("bookie://a", "does not start with zk://"),
        ("zk://", "has no address"),
        ("zk:///quire", "has no address"),
        ("zk://a,/quire", "no valid host"),
        ("zk://a/quire#here", "neither # nor %"),
        ("zk://a/qu%20ire", "neither # nor %"),
        ("zk://a:0/x", "no valid port"),
        ("zk://me:s3cret@a/x", "stands in a file"),
        ("zk://me@a/x", "without a password"),
        ("zk://me@a/x?password-file=/missing", "cannot be read"),
        ("zk://a/x?password-file=/p", "without a user"),
        ("zk://a/x?ca=/ca", "for zk[+]tls://"),
        ("zk://a/x?timeout=3", "unknown"),
        ("zk+tls://a/x?key=/k", "without its certificate"),
        ("zk://a/x?acl=mine", "acl='mine' is unknown"),
        ("zk://a/x?acl=creator", "a user or a certificate"),
        ("zk://me@a/x?password-file=/dev/null", "is empty"),
        ("zk://a/x?", ""),
        ("zk://a/x?ca", "name=value"),
        ("zk://a/x//y", "no path"),
        ("zk://a/x/../y", "no path"),
        ("zk://a/x\n", "no path"),
        ("zk://a/zookeeper/x", "ZooKeeper's own"),
    ],
)
def test_what_cannot_be_understood_is_refused(
    url: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(PASSWORD_VARIABLE, raising=False)
    if not why:
        parse_zookeeper_url(url)
        return
    with pytest.raises(BadAddress, match=why) as caught:
        parse_zookeeper_url(url)
    assert "s3cret" not in str(caught.value)


def test_the_scheme_tells_an_ensemble() -> None:
    assert is_zookeeper_url("zk://a") and is_zookeeper_url("zk+tls://a")
    assert not is_zookeeper_url("bookie://a") and not is_zookeeper_url("zk")
