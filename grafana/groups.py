"""The dashboard of consumer groups."""

from __future__ import annotations

from grafana.panels import Dashboard, PanelRow, Variable, graph, stat

C, G = "quire_client_group_", "quire_group_"
WHERE = '{group=~"$group"}'


def _max(name: str, by: str = "group") -> str:
    return f"max by({by}) ({G}{name}{WHERE})"


def _rate(name: str) -> str:
    return f"sum by(group,topic) (rate({C}{name}{WHERE}[$__rate_interval]))"


GLANCE = PanelRow(
    "Now",
    (
        stat("Groups", "Groups that the leader publishes.", "none", f"count({G}members)"),
        stat("Members", "Members of all groups.", "none", f"sum({G}members{WHERE})"),
        stat(
            "Lag",
            "Messages that groups have not committed or acknowledged.",
            "short",
            f"sum({G}lag_messages{WHERE})",
        ),
        stat(
            "Oldest message",
            "Age of the oldest message that a group has not committed or acknowledged.",
            "s",
            f"max({G}lag_seconds{WHERE})",
        ),
    ),
    across=4,
)

LAG = PanelRow(
    "Lag",
    (
        graph(
            "Lag in messages",
            "Messages not committed, or not acknowledged. Estimated in part, if there are many.",
            "short",
            (_max("lag_messages", "group,topic"), "{{group}} {{topic}}"),
        ),
        graph(
            "Lag in seconds",
            "Age of the oldest of these messages. Commits every few seconds show as that much.",
            "s",
            (_max("lag_seconds", "group,topic"), "{{group}} {{topic}}"),
        ),
    ),
    across=2,
)

MEMBERS = PanelRow(
    "Members and rebalances",
    (
        graph(
            "Members of groups", "Consumers that report in.", "none", (_max("members"), "{{group}}")
        ),
        graph(
            "Partitions",
            "Partitions that members have, or have slots of. Fewer than there are: a rebalance.",
            "none",
            (_max("partitions"), "{{group}}"),
        ),
        graph(
            "Rebalances",
            "New assignments a second: members came or went, or topics changed.",
            "ops",
            (
                f"sum by(group) (rate({G}rebalances_total{WHERE}[$__rate_interval]))",
                "{{group}}",
            ),
        ),
        graph(
            "Rebalance under way",
            "How long it lasts. Members that give partitions up finish what they have of them.",
            "s",
            (_max("rebalancing_seconds"), "{{group}}"),
        ),
        graph(
            "Time in rebalances",
            "Part of the time in which not every member had its share. Partitions that do not move "
            "are read on.",
            "percentunit",
            (
                f"sum by(group) (rate({G}rebalance_seconds_total{WHERE}[$__rate_interval]))",
                "{{group}}",
            ),
        ),
    ),
)

AGAIN = PanelRow(
    "Delivered again, and given up",
    (
        graph(
            "Redeliveries",
            "Messages a second that nobody acknowledged in time, or that were refused, in shared "
            "groups.",
            "ops",
            (_rate("redeliveries_total"), "{{group}} {{topic}}"),
        ),
        graph(
            "Dead letters",
            "Messages a second that were delivered too often, and went to the dead-letter topic.",
            "ops",
            (_rate("dead_letters_total"), "{{group}} {{topic}}"),
        ),
    ),
    across=2,
)

GROUPS = Dashboard(
    "groups",
    "quire / Consumer groups",
    "Members, rebalances and lag, published by the leader; redeliveries and dead letters, counted "
    "by clients that serve metrics.",
    (GLANCE, LAG, MEMBERS, AGAIN),
    (Variable("group", "Group", G + "members"),),
)
