"""Profiles: named clusters in a file, so that no password stands on a command line.

    [prod]
    cluster = "bookie+tls://host-1:3181,host-2:3181"
    user = "ann"
    password_file = "prod.password"    # one line; beside this file, unless absolute
    ca = "ca.pem"

*cert* and *key* are the files of the caller's own certificate. For a store in SQLite or ZooKeeper
there is *cluster* alone. The environment variable QUIRE_PROFILES may name the file; otherwise it is
``quire/profiles.toml`` in the user's folder of configuration (XDG_CONFIG_HOME, or ~/.config).
"""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, urlencode

import msgspec

from metadata.cluster_url import is_cluster_url, parse_cluster_url
from metadata.errors import BadAddress

_FILES = ("ca", "cert", "key")


class BadProfile(Exception):
    """The file of profiles, or what a profile names, cannot be used; the message says what."""


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One table of the file."""

    cluster: str
    user: str = ""
    password_file: str = ""
    ca: str = ""
    cert: str = ""
    key: str = ""


def profiles_file() -> Path:
    """Return the path of the file, which need not exist."""
    if named := os.environ.get("QUIRE_PROFILES"):
        return Path(named)
    folder = os.environ.get("XDG_CONFIG_HOME")
    return (Path(folder) if folder else Path.home() / ".config") / "quire" / "profiles.toml"


def cluster_of(name: str, *, warn: Callable[[str], None]) -> str:
    """Return the URL of the cluster of a profile, with its login. Blocks.

    *warn* is called with a sentence for each file with a password that others may read.

    Raises:
        BadProfile: there is no such profile, or it cannot be used.
    """
    path = profiles_file()
    profile = _read(path, name)
    try:
        if not is_cluster_url(profile.cluster):
            return _plain(profile)
        found = parse_cluster_url(profile.cluster)
        if found.access.login is not None:
            _check_private(path, warn)
        url = _url(profile, path.parent, warn)
        parse_cluster_url(url)
    except BadAddress as wrong:
        raise BadProfile(f"{path}: profile {name}: {wrong}") from wrong
    except BadProfile as wrong:
        raise BadProfile(f"{path}: profile {name}: {wrong}") from wrong
    return url


def _read(path: Path, name: str) -> Profile:
    try:
        tables = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise BadProfile(f"{path}: no such file; profile {name!r} is to be in it") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as wrong:
        raise BadProfile(f"{path}: {wrong}") from wrong
    if name not in tables:
        known = ", ".join(sorted(tables)) or "none"
        raise BadProfile(f"{path}: there is no profile {name!r}; there are: {known}")
    try:
        return msgspec.convert(tables[name], Profile)
    except msgspec.ValidationError as wrong:
        raise BadProfile(f"{path}: profile {name}: {wrong}") from wrong


def _plain(profile: Profile) -> str:
    if profile != Profile(profile.cluster):
        raise BadProfile(
            "user, password_file, ca, cert and key are for bookie:// and bookie+tls://"
        )
    if "://" not in profile.cluster:
        raise BadProfile(f"cluster: {profile.cluster!r} is not a URL; write bookie://HOST:PORT")
    return profile.cluster


def _url(profile: Profile, folder: Path, warn: Callable[[str], None]) -> str:
    """Return the profile's URL with its login and files."""
    if bool(profile.user) != bool(profile.password_file):
        raise BadProfile("user and password_file belong together")
    scheme, _, rest = profile.cluster.partition("://")
    hosts, _, query = rest.partition("?")
    login = ""
    if profile.user:
        if "@" in hosts:
            raise BadProfile("the cluster's URL has a login already")
        password = _password(folder / Path(profile.password_file).expanduser(), warn)
        login = f"{quote(profile.user, safe='')}:{quote(password, safe='')}@"
    named = {each: getattr(profile, each) for each in _FILES if getattr(profile, each)}
    files = urlencode({each: str(folder / Path(file).expanduser()) for each, file in named.items()})
    queries = "&".join(filter(None, (query, files)))
    return f"{scheme}://{login}{hosts}{'?' + queries if queries else ''}"


def _password(path: Path, warn: Callable[[str], None]) -> str:
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as wrong:
        raise BadProfile(f"password_file: {wrong}") from wrong
    if len(lines) != 1 or not lines[0]:
        raise BadProfile(f"password_file: {path} is not one line with the password")
    _check_private(path, warn)
    return lines[0]


def _check_private(path: Path, warn: Callable[[str], None]) -> None:
    """Warn if others than the owner may read *path*, which holds a password."""
    if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        warn(f"{path} holds a password, and others may read it: chmod 600 {path}")
