"""The dashboard of the cluster: who leads, which bookies are there, and what repair does."""

from __future__ import annotations

from grafana.panels import Dashboard, Row, graph, stat

B, C = "quire_bookie_", "quire_cluster_"


def _rate(name: str, by: str = "bookie") -> str:
    return f"sum by({by}) (rate({B}{name}[$__rate_interval]))"


def _repairs(result: str) -> str:
    return f'sum by(bookie) (rate({B}repairs_total{{result="{result}"}}[$__rate_interval]))'


GLANCE = Row(
    "Now",
    (
        stat(
            "Leader",
            "The bookie that leads; none for a moment after it died.",
            "none",
            f"{B}leads == 1",
            "{{bookie}}",
        ),
        stat(
            "Registered",
            "Bookies that serve, as the leader sees it.",
            "none",
            f'max({C}bookies{{state="registered"}})',
        ),
        stat(
            "Lost",
            "Bookies with a cookie that are gone for longer than lost_after_s.",
            "none",
            f'max({C}bookies{{state="lost"}})',
        ),
        stat(
            "Ledgers to repair",
            "Ledgers that have, or may have, too few copies.",
            "none",
            f"sum({C}under_replicated_ledgers)",
        ),
        stat(
            "Bytes to repair",
            "That may have to be copied for them, as far as known.",
            "bytes",
            f"sum({C}under_replicated_bytes)",
        ),
        stat(
            "Repair copies",
            "Bytes a second, all bookies together.",
            "Bps",
            f"sum({_rate('repair_copied_bytes_total')})",
        ),
    ),
    across=6,
)

BOOKIES = Row(
    "Leader and bookies",
    (
        graph(
            "Who leads",
            "1 for the bookie that leads. Two at a time are the old and the new one, in the moment "
            "of a change; what the old one does then counts for nothing.",
            "none",
            (f"{B}leads", "{{bookie}}"),
            stacked=True,
        ),
        graph(
            "Bookies by state",
            "As the leader sees them; one may be in several states. Read-only: its disk is full. "
            "Limbo: it may have lost records, and denies no entry. Draining: it is to be emptied.",
            "none",
            (f"max by(state) ({C}bookies)", "{{state}}"),
        ),
        graph(
            "What bookies say of themselves",
            "1 for a bookie in the state.",
            "none",
            (f"{B}read_only", "{{bookie}} read-only"),
            (f"{B}limbo", "{{bookie}} limbo"),
            (f"{B}draining", "{{bookie}} draining"),
        ),
        graph(
            "Scraped",
            "1 while a bookie's metrics can be had.",
            "none",
            ('up{job="quire-bookies"}', "{{bookie}}"),
            stacked=True,
        ),
        graph(
            "Age of what the leader knows",
            "Rises while nobody leads, or the metadata store does not answer.",
            "s",
            (f"time() - max({C}looked_timestamp_seconds)", "age"),
        ),
        graph(
            "Roles started again",
            "Leading and repair are guests of a bookie, started again when they fail: a bug, or "
            "damaged metadata. The log says which.",
            "none",
            (f"{B}role_restarts_total", "{{bookie}}"),
        ),
    ),
)

REPAIR = Row(
    "Repair",
    (
        graph(
            "Bytes to be copied, by reason",
            "Of ledgers that want repair; those of which it is not known count 0.",
            "bytes",
            (f"max by(reason) ({C}under_replicated_bytes)", "{{reason}}"),
            stacked=True,
        ),
        graph(
            "Ledgers that want repair, by reason",
            "They should become fewer within minutes.",
            "none",
            (f"max by(reason) ({C}under_replicated_ledgers)", "{{reason}}"),
            stacked=True,
        ),
        graph(
            "Repairs under way",
            "Repairs and moves; each bookie does a few at a time.",
            "none",
            (f"max({C}repairs)", "under way"),
        ),
        graph(
            "Progress of these",
            "Bytes that the repairs under way are to copy, and have copied.",
            "bytes",
            (f"max({C}repair_bytes)", "to copy"),
            (f"max({C}repair_copied_bytes)", "copied"),
        ),
        graph(
            "Copied by each bookie",
            "At most repair_rate_max each: clients go first.",
            "Bps",
            (_rate("repair_copied_bytes_total"), "{{bookie}}"),
        ),
        graph(
            "Ledgers repaired",
            "Made whole by each bookie.",
            "ops",
            (_repairs("ok"), "{{bookie}}"),
        ),
        graph(
            "Repairs that failed",
            "They are tried again later; `quire cluster status` says why they failed.",
            "ops",
            (_repairs("failed"), "{{bookie}}"),
        ),
        graph(
            "Marks as each bookie saw them",
            "Ledgers that want repair; a bookie that sees others than the rest is cut off from "
            "the metadata.",
            "none",
            (f"{B}repair_marks", "{{bookie}}"),
        ),
        graph(
            "Damage met",
            "Places on their disks where bookies found other bytes than they wrote.",
            "none",
            (f"{B}damages_total + {B}scrub_damages_total", "{{bookie}}"),
        ),
    ),
)

CLUSTER = Dashboard(
    "cluster",
    "quire / Cluster",
    "The leader, the bookies, and what is under-replicated.",
    (GLANCE, BOOKIES, REPAIR),
)
