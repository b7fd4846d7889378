"""Names of groups on the command line."""

from __future__ import annotations

import click

from metadata.groups.rows import check_group


class GroupParam(click.ParamType[str]):
    """The name of a group. What cannot be one is refused before anything is asked."""

    name = "group"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """Return the name."""
        text = str(value)
        try:
            check_group(text)
        except ValueError as wrong:
            self.fail(str(wrong), param, ctx)
        return text


group_name = click.argument("name", metavar="GROUP", type=GroupParam())
"""The argument of a command about one group."""
