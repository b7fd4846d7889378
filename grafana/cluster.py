"""The dashboard of the cluster: leader, bookies and repair."""

from __future__ import annotations

from grafana.panels import Dashboard, PanelRow, graph, stat

B, C = "quire_bookie_", "quire_cluster_"


def _rate(name: str, by: str = "bookie") -> str:
    return f"sum by({by}) (rate({B}{name}[$__rate_interval]))"


def _repairs(result: str) -> str:
    return f'sum by(bookie) (rate({B}repairs_total{{result="{result}"}}[$__rate_interval]))'


GLANCE = PanelRow(
    "Now",
    (
        stat(
            "Leader",
            "The bookie that leads; none for a moment after a leader died.",
            "none",
            f"{B}leads == 1",
            "{{bookie}}",
        ),
        stat(
            "Registered",
            "Bookies registered with the cluster, as the leader sees it.",
            "none",
            f'max({C}bookies{{state="registered"}})',
        ),
        stat(
            "Lost",
            "Bookies with a cookie that have been gone for lost_after_s.",
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
            "Bytes that may have to be copied for these, as far as known.",
            "bytes",
            f"sum({C}under_replicated_bytes)",
        ),
        stat(
            "Repair copies",
            "Bytes copied a second, by all bookies together.",
            "Bps",
            f"sum({_rate('repair_copied_bytes_total')})",
        ),
    ),
    across=6,
)

BOOKIES = PanelRow(
    "Leader and bookies",
    (
        graph(
            "Leading bookie",
            "1 for the bookie that leads. During a change there may be two for a moment; changes "
            "by the old one are rejected.",
            "none",
            (f"{B}leads", "{{bookie}}"),
            stacked=True,
        ),
        graph(
            "Bookies by state",
            "As the leader sees them; one may be in several states. Read-only: its disk is full. "
            "Limbo: it may have lost entries, and denies none. Draining: it is being emptied.",
            "none",
            (f"max by(state) ({C}bookies)", "{{state}}"),
        ),
        graph(
            "States reported by bookies",
            "1 for a bookie in the state.",
            "none",
            (f"{B}read_only", "{{bookie}} read-only"),
            (f"{B}limbo", "{{bookie}} limbo"),
            (f"{B}draining", "{{bookie}} draining"),
        ),
        graph(
            "Scraped",
            "1 while a bookie's metrics page responds.",
            "none",
            ('up{job="quire-bookies"}', "{{bookie}}"),
            stacked=True,
        ),
        graph(
            "Age of the leader's view",
            "Rises while there is no leader, or the metadata store does not respond.",
            "s",
            (f"time() - max({C}looked_timestamp_seconds)", "age"),
        ),
        graph(
            "Role restarts",
            "A bookie restarts its leader and repair roles when they fail, because of a bug or "
            "damaged "
            "metadata. Its log has the error.",
            "none",
            (f"{B}role_restarts_total", "{{bookie}}"),
        ),
    ),
)

TIME = PanelRow(
    "Time",
    (
        graph(
            "Timestamps handed out",
            "Timestamps a second, and requests for them; requests of one client share calls.",
            "ops",
            (f"sum({_rate('timestamps_total')})", "timestamps"),
            (f"sum({_rate('timestamp_requests_total')})", "requests"),
        ),
        graph(
            "Bookie that hands out timestamps",
            "1 for the one that does; none for some seconds after it died.",
            "none",
            (f"{B}time_serves", "{{bookie}}"),
            stacked=True,
        ),
        graph(
            "Clock ahead of timestamps",
            "Of the leader's host. Far below 0, its clock was set back, or the clock of the leader "
            "before was ahead; timestamps wait for it.",
            "s",
            (f"{B}clock_lag_seconds", "{{bookie}}"),
            minimum=None,
        ),
        graph(
            "Windows stored, and jumps of the clock",
            "A window is stored every 3 s while timestamps are taken. A jump: the clock was set by "
            "over 150 ms, or the process was held up.",
            "none",
            (f"increase({B}time_windows_total[$__rate_interval])", "{{bookie}} windows"),
            (f"increase({B}clock_jumps_total[$__rate_interval])", "{{bookie}} jumps"),
        ),
    ),
)

REPAIR = PanelRow(
    "Repair",
    (
        graph(
            "Bytes to be copied, by reason",
            "Bytes of ledgers waiting for repair; unknown sizes count as 0.",
            "bytes",
            (f"max by(reason) ({C}under_replicated_bytes)", "{{reason}}"),
            stacked=True,
        ),
        graph(
            "Ledgers waiting for repair, by reason",
            "Should decrease within minutes.",
            "none",
            (f"max by(reason) ({C}under_replicated_ledgers)", "{{reason}}"),
            stacked=True,
        ),
        graph(
            "Repairs under way",
            "Repairs and moves; each bookie runs a few at once.",
            "none",
            (f"max({C}repairs)", "under way"),
        ),
        graph(
            "Progress of repairs",
            "Bytes that the repairs under way will copy, and have copied.",
            "bytes",
            (f"max({C}repair_bytes)", "to copy"),
            (f"max({C}repair_copied_bytes)", "copied"),
        ),
        graph(
            "Copied by each bookie",
            "Bytes a second, at most repair_rate_max each, to leave bandwidth to clients.",
            "Bps",
            (_rate("repair_copied_bytes_total"), "{{bookie}}"),
        ),
        graph(
            "Ledgers repaired",
            "Ledgers repaired a second by each bookie.",
            "ops",
            (_repairs("ok"), "{{bookie}}"),
        ),
        graph(
            "Repairs that failed",
            "Each is tried again later; `quire cluster status` shows the reasons.",
            "ops",
            (_repairs("failed"), "{{bookie}}"),
        ),
        graph(
            "Marks seen by each bookie",
            "Ledgers waiting for repair; a bookie whose number differs from the others is cut off "
            "from "
            "the metadata store.",
            "none",
            (f"{B}repair_marks", "{{bookie}}"),
        ),
        graph(
            "Ledgers on too few racks",
            "Copies of their entries are on fewer racks than the bookies allow; `quire cluster "
            "rebalance` moves them. 0 if no bookie states a rack.",
            "none",
            (f"max({C}ledgers_on_few_racks)", "ledgers"),
        ),
        graph(
            "Damage found",
            "Places where bookies found corrupted bytes on their disks.",
            "none",
            (f"{B}damages_total", "{{bookie}}"),
        ),
    ),
)

CLUSTER = Dashboard(
    "cluster",
    "quire / Cluster",
    "The leader, the bookies, and what is under-replicated.",
    (GLANCE, BOOKIES, TIME, REPAIR),
)
