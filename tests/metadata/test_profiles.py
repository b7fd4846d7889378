"""Clusters by name, whose passwords stand in files."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from metadata.access import Access, Login
from metadata.cluster_options import cluster, cluster_of_group, profile
from metadata.cluster_url import parse_cluster_url
from metadata.outcome import Exit, Program
from metadata.profiles import BadProfile, cluster_of, profiles_file

PROD = """
[prod]
cluster = "bookie+tls://h1:1,h2"
user = "a:n@n"
password_file = "prod.password"
ca = "ca.pem"

[here]
cluster = "sqlite:///tmp/metadata.db"

[open]
cluster = "bookie://h:7"
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder of configuration, with profiles and a password."""
    for name in ("QUIRE_PROFILES", "QUIRE_PROFILE", "QUIRE_CLUSTER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = tmp_path / "quire"
    folder.mkdir()
    (folder / "profiles.toml").write_text(PROD)
    (folder / "prod.password").write_text("se/cr:et@?\n")
    (folder / "prod.password").chmod(0o600)
    return folder


def quiet(text: str) -> None:
    raise AssertionError(text)


def test_a_profile_is_a_url_with_its_login_and_files(folder: Path) -> None:
    found = parse_cluster_url(cluster_of("prod", warn=quiet))
    assert [str(address) for address in found.addresses] == ["h1:1", "h2:3181"]
    assert found.access == Access(
        tls=True, ca=str(folder / "ca.pem"), login=Login("a:n@n", "se/cr:et@?")
    )
    assert cluster_of("here", warn=quiet) == "sqlite:///tmp/metadata.db"
    assert cluster_of("open", warn=quiet) == "bookie://h:7"


def test_files_may_be_under_the_home_of_the_user(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = folder.parent / "home"
    home.mkdir()
    (folder / "prod.password").rename(home / "prod.password")
    monkeypatch.setenv("HOME", str(home))
    text = PROD.replace("prod.password", "~/prod.password").replace("ca.pem", "~/ca.pem")
    (folder / "profiles.toml").write_text(text)
    access = parse_cluster_url(cluster_of("prod", warn=quiet)).access
    assert access == Access(tls=True, ca=str(home / "ca.pem"), login=Login("a:n@n", "se/cr:et@?"))


def test_the_file_may_be_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert profiles_file() == folder / "profiles.toml"
    monkeypatch.setenv("QUIRE_PROFILES", "/etc/quire.toml")
    assert profiles_file() == Path("/etc/quire.toml")
    monkeypatch.delenv("QUIRE_PROFILES")
    monkeypatch.delenv("XDG_CONFIG_HOME")
    assert profiles_file() == Path.home() / ".config" / "quire" / "profiles.toml"


@pytest.mark.parametrize("mode", [0o640, 0o604])
def test_a_password_that_others_may_read_is_warned_of(folder: Path, mode: int) -> None:
    (folder / "prod.password").chmod(mode)
    warned: list[str] = []
    cluster_of("prod", warn=warned.append)
    path = folder / "prod.password"
    assert warned == [f"{path} holds a password, and others may read it: chmod 600 {path}"]


def test_so_is_a_file_of_profiles_with_a_password_in_it(folder: Path) -> None:
    file = folder / "profiles.toml"
    file.write_text('[prod]\ncluster = "bookie://ann:secret@h"\n')
    file.chmod(0o644)
    warned: list[str] = []
    cluster_of("prod", warn=warned.append)
    assert [str(file) in text for text in warned] == [True]
    file.chmod(0o600)
    cluster_of("prod", warn=quiet)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[other]", "there is no profile 'prod'; there are: other"),
        ("", "there is no profile 'prod'; there are: none"),
        ("prod = 1", "profile prod: "),
        ("[prod", "profiles.toml: "),
        ("[prod]", "missing required field `cluster`"),
        ('[prod]\ncluster = "bookie://h"\npassword = "x"', "unknown field `password`"),
        ('[prod]\ncluster = "h:1"', "'h:1' is not a URL; write bookie://HOST:PORT"),
        ('[prod]\ncluster = "bookie://h"\nuser = "x"', "user and password_file belong together"),
        ('[prod]\ncluster = "bookie://h"\nca = "x"', r"certificates are for bookie\+tls://"),
        ('[prod]\ncluster = "sqlite:///x"\nca = "x"', "are for bookie://"),
        (
            '[prod]\ncluster = "bookie://a:b@h"\nuser = "x"\npassword_file = "prod.password"',
            "has a login already",
        ),
        (
            '[prod]\ncluster = "bookie://h"\nuser = "x"\npassword_file = "nowhere"',
            "password_file: .*nowhere",
        ),
        (
            '[prod]\ncluster = "bookie://h"\nuser = "x"\npassword_file = "profiles.toml"',
            "is not one line with the password",
        ),
    ],
)
def test_what_cannot_be_used_is_named(folder: Path, text: str, words: str) -> None:
    (folder / "profiles.toml").write_text(text)
    with pytest.raises(BadProfile, match=words) as refused:
        cluster_of("prod", warn=lambda _text: None)
    assert "profiles.toml" in str(refused.value)


def test_without_the_file_it_is_named(folder: Path) -> None:
    (folder / "profiles.toml").unlink()
    with pytest.raises(BadProfile, match=r"profiles\.toml: no such file"):
        cluster_of("prod", warn=quiet)


# --- on the command line ----------------------------------------------------------------------


@click.group()
@cluster_of_group
@profile
def program() -> None:
    """Have a profile."""


@program.command()
@cluster(default="bookie://default:1", text="Cluster.")
def show(*, cluster: str) -> None:
    """Show the cluster."""
    click.echo(cluster)


conclude = Program("program", ()).conclude


@pytest.mark.parametrize(
    ("words", "environment", "shown"),
    [
        ("show", {}, "bookie://default:1"),
        ("show --profile open", {}, "bookie://h:7"),
        ("--profile open show", {}, "bookie://h:7"),
        ("--profile here show --profile open", {}, "bookie://h:7"),
        ("show --cluster bookie://c", {"QUIRE_PROFILE": "open"}, "bookie://c"),
        ("show", {"QUIRE_PROFILE": "open"}, "bookie://h:7"),
        ("show", {"QUIRE_PROFILE": "open", "QUIRE_CLUSTER": "bookie://e"}, "bookie://e"),
        ("--profile open show", {"QUIRE_CLUSTER": "bookie://e"}, "bookie://h:7"),
        ("--profile open show", {"QUIRE_PROFILE": "here"}, "bookie://h:7"),
        ("--cluster bookie://c show", {}, "bookie://c"),
        ("--cluster bookie://c show", {"QUIRE_CLUSTER": "bookie://e"}, "bookie://c"),
        ("--cluster bookie://c show", {"QUIRE_PROFILE": "open"}, "bookie://c"),
        ("--cluster bookie://c show --cluster bookie://d", {}, "bookie://d"),
    ],
)
def test_what_is_nearest_to_the_command_names_the_cluster(
    words: str,
    environment: dict[str, str],
    shown: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert conclude(program, words.split()) == Exit.DONE
    assert capsys.readouterr().out == f"{shown}\n"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("show --profile open --cluster bookie://c", "--cluster and --profile exclude each other"),
        ("--profile open show --cluster bookie://c", "--cluster and --profile exclude each other"),
        ("--cluster bookie://c show --profile open", "--cluster and --profile exclude each other"),
        ("--cluster bookie://c --profile open show", "--cluster and --profile exclude each other"),
        ("--profile none show", "there is no profile 'none'; there are: here, open, prod"),
    ],
)
def test_a_wrong_profile_is_a_wrong_command_line(
    words: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert conclude(program, words.split()) == Exit.USAGE
    assert reason in capsys.readouterr().err


def test_a_warning_goes_to_stderr_and_the_password_nowhere(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "prod.password").chmod(0o644)

    @click.command()
    @cluster(default="", text="Cluster.")
    def name(*, cluster: str) -> None:
        click.echo(str(parse_cluster_url(cluster)))

    assert conclude(name, ["--profile", "prod"]) == Exit.DONE
    out, err = capsys.readouterr()
    assert err.startswith("warning: ")
    assert "se/cr" not in out + err
