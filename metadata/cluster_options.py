"""The options --cluster and --profile of commands, and what they mean together.

The first of these that is given names the cluster: --cluster or --profile, QUIRE_CLUSTER,
QUIRE_PROFILE; else it is the command's default. ``quire --profile prod read ...`` and
``quire read --profile prod ...`` mean the same, and so with --cluster; of two, the one behind the
command counts. Benchmarks leave out the environment.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from metadata.profiles import BadProfile, cluster_of
from metadata.urls import SQLITE_SCHEME

FC = TypeVar("FC", bound=Callable[..., Any] | click.Command)
TEXT = (
    "One or more bookies of the cluster: bookie://HOST:PORT[,HOST:PORT...]; with a login, "
    "bookie://USER:PASSWORD@HOST:PORT; over TLS, bookie+tls://...?ca=FILE. Or its ZooKeeper, where "
    "that can be reached: zk://HOST:PORT[,...]/path, or zk+tls://. QUIRE_CLUSTER sets it too. "
    "A profile keeps the password from other users of this host."
)
_PROFILE = "metadata.cluster_options.profile"
_CLUSTER = "metadata.cluster_options.cluster"
_EXCLUDED = "--cluster and --profile exclude each other"


def _note_profile(context: click.Context, parameter: click.Parameter, name: str | None) -> None:
    """Keep the profile; one on the command line counts more than QUIRE_PROFILE."""
    if name is None:
        return
    is_given = _is_given(context, parameter)
    if is_given or _PROFILE not in context.meta:
        context.meta[_PROFILE] = (name, is_given)


def _note_cluster(context: click.Context, _parameter: click.Parameter, url: str | None) -> None:
    if url is not None:
        context.meta[_CLUSTER] = url


def check_exists(context: click.Context, parameter: click.Parameter, url: str | None) -> str | None:
    """Return *url*. A SQLite file that it names is there, as opening it would create it."""
    if url is None or not url.startswith(SQLITE_SCHEME):
        return url
    path = Path(url.removeprefix(SQLITE_SCHEME))
    try:
        path.stat()
    except FileNotFoundError:
        if path.is_absolute():
            raise click.BadParameter(
                f"there is no metadata store at {path}; a new bookie creates one",
                context,
                parameter,
            ) from None
    except OSError:  # opening it says more
        pass
    return url


def _choose_given(context: click.Context, parameter: click.Parameter, url: str) -> str:
    """Choose among what the command line names: a profile of the environment does not count."""
    _name, is_given = context.meta.get(_PROFILE, ("", False))
    if not is_given:
        context.meta.pop(_PROFILE, None)
    return _choose(context, parameter, url)


def _choose(context: click.Context, parameter: click.Parameter, url: str) -> str:
    url = _chosen(context, parameter, url)
    check_exists(context, parameter, url)
    return url


def _chosen(context: click.Context, parameter: click.Parameter, url: str) -> str:
    """Return the URL of the cluster, which a profile may name."""
    name, is_given = context.meta.get(_PROFILE, ("", False))
    if _is_given(context, parameter):
        if is_given:
            raise click.UsageError(_EXCLUDED, context)
        return url
    if (of_group := context.meta.get(_CLUSTER)) is not None:
        if is_given:
            raise click.UsageError(_EXCLUDED, context)
        return str(of_group)
    source = context.get_parameter_source(parameter.name or "")
    if not name or (source is ParameterSource.ENVIRONMENT and not is_given):
        return url
    try:
        return cluster_of(name, warn=lambda text: click.echo(f"warning: {text}", err=True))
    except BadProfile as wrong:
        raise click.UsageError(str(wrong), context) from wrong


def _is_given(context: click.Context, parameter: click.Parameter) -> bool:
    return context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE


_PROFILE_TEXT = (
    "Cluster, user, password file and certificates from this table of "
    "~/.config/quire/profiles.toml."
)
profile = click.option(
    "--profile",
    envvar="QUIRE_PROFILE",
    metavar="NAME",
    is_eager=True,  # before --cluster, which looks at it
    expose_value=False,
    callback=_note_profile,
    help=f"{_PROFILE_TEXT} QUIRE_PROFILE sets it too.",
)
"""For a command, or for a group: its commands then have it."""

cluster_of_group = click.option(
    "--cluster",
    metavar="URL",
    expose_value=False,
    callback=_note_cluster,
    help="One or more bookies of the cluster: bookie://HOST:PORT[,HOST:PORT...]. QUIRE_CLUSTER "
    "sets it too, and each command has more about it.",
)
"""For a group: its commands then have it."""


def cluster(*, default: str, text: str) -> Callable[[FC], FC]:
    """Return the decorator that adds --profile, and --cluster with this help."""
    option = click.option(
        "--cluster",
        envvar="QUIRE_CLUSTER",
        default=default,
        show_default=bool(default),
        metavar="URL",
        callback=_choose,
        help=text,
    )
    return lambda decorated: option(profile(decorated))


def given_cluster(*, text: str) -> Callable[[FC], FC]:
    """Return the decorator that adds both options for a command that puts a load on a cluster.

    Only the command line names that cluster, as QUIRE_CLUSTER and QUIRE_PROFILE are set for other
    commands. The URL is "" if it names none.
    """
    option = click.option("--cluster", default="", metavar="URL", callback=_choose_given, help=text)
    given_profile = click.option(
        "--profile",
        metavar="NAME",
        is_eager=True,
        expose_value=False,
        callback=_note_profile,
        help=_PROFILE_TEXT,
    )
    return lambda decorated: option(given_profile(decorated))
