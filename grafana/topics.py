"""The dashboard of topics and of the clients that write and read them."""

from __future__ import annotations

from grafana.panels import Dashboard, Row, Variable, graph, quantiles, stat

C, T = "quire_client_", "quire_topic_"
WHERE = '{topic=~"$topic"}'


def _rate(name: str, by: str = "topic") -> str:
    return f"sum by({by}) (rate({C}{name}{WHERE}[$__rate_interval]))"


def _sum(name: str, by: str = "topic", prefix: str = T) -> str:
    return f"sum by({by}) ({prefix}{name}{WHERE})"


def _closed() -> str:
    return f'sum by(topic) ({T}ledgers{{topic=~"$topic", state="closed"}})'


def _not_closed() -> str:
    return f'sum by(topic,state) ({T}ledgers{{topic=~"$topic", state!="closed"}})'


def _age(name: str) -> str:
    return f"time() - min by(topic) ({T}{name}{WHERE})"


GLANCE = Row(
    "Now",
    (
        stat("Topics", "In the cluster.", "none", "max(quire_cluster_topics)"),
        stat(
            "Sent",
            "Messages acknowledged a second to the clients that are scraped.",
            "ops",
            f"sum({_rate('sent_messages_total')})",
        ),
        stat(
            "Read",
            "Messages a second that readers handed out.",
            "ops",
            f"sum({_rate('read_messages_total')})",
        ),
        stat(
            "Send p99",
            "99 of 100 batches were acknowledged in this time after their first message.",
            "s",
            f"histogram_quantile(0.99, {_rate('send_seconds_bucket', 'le')})",
        ),
        stat(
            "Closed messages",
            "In the closed ledgers of all topics.",
            "short",
            f"sum({T}messages{WHERE})",
        ),
        stat(
            "Closed bytes", "Of these ledgers, one copy of each.", "bytes", f"sum({T}bytes{WHERE})"
        ),
    ),
    across=6,
)

PRODUCE = Row(
    "Producers",
    (
        graph(
            "Messages acknowledged",
            "Durable on the ack quorum.",
            "ops",
            (_rate("sent_messages_total"), "{{topic}}"),
        ),
        graph(
            "Bytes acknowledged",
            "Of entries, one copy of each, as compressed as they are sent.",
            "Bps",
            (_rate("sent_bytes_total"), "{{topic}}"),
        ),
        graph(
            "Batches acknowledged",
            "Each is one entry of a ledger.",
            "ops",
            (_rate("batch_bytes_count"), "{{topic}}"),
        ),
        graph(
            "From a message to its acknowledgement: median",
            "Of a batch, from its first message on: linger, queue, network and the bookies' sync.",
            "s",
            *quantiles(C + "send_seconds", WHERE, "topic", levels=(0.5,)),
        ),
        graph(
            "From a message to its acknowledgement: p99",
            "Of the slowest batch in a hundred. Losing a bookie shows here.",
            "s",
            *quantiles(C + "send_seconds", WHERE, "topic", levels=(0.99,)),
        ),
        graph(
            "Bytes in a batch",
            "A batch is one entry. Small ones cost the bookies as much as large ones.",
            "bytes",
            *quantiles(C + "batch_bytes", WHERE, "topic"),
        ),
        graph(
            "Messages in a batch",
            "The mean.",
            "none",
            (f"{_rate('sent_messages_total')} / {_rate('batch_bytes_count')}", "{{topic}}"),
        ),
        graph(
            "Bytes under way",
            "Sent and not acknowledged. At a producer's limit, send() waits.",
            "bytes",
            (_sum("under_way_bytes", prefix=C), "{{topic}}"),
        ),
        graph(
            "Messages that failed",
            "By the name of the error; SendUnknown: they may or may not be kept.",
            "ops",
            (_rate("send_errors_total", "topic,kind"), "{{topic}} {{kind}}"),
        ),
    ),
)

ROLLS = Row(
    "From ledger to ledger",
    (
        graph(
            "Rolls",
            "Lanes that went on in their next ledger.",
            "ops",
            (_rate("roll_seconds_count"), "{{topic}}"),
        ),
        graph(
            "How long a roll takes",
            "Batches wait meanwhile; some milliseconds, unless the ledger had failed.",
            "s",
            *quantiles(C + "roll_seconds", WHERE, "topic"),
        ),
        graph(
            "Rolls after a failure, and takeovers",
            "A ledger failed and was recovered; a lane was taken that its last writer had left "
            "open.",
            "ops",
            (_rate("recoveries_total"), "{{topic}} recovered"),
            (_rate("takeovers_total"), "{{topic}} taken over"),
        ),
    ),
)

READ = Row(
    "Readers",
    (
        graph(
            "Messages read",
            "Handed out by readers.",
            "ops",
            (_rate("read_messages_total"), "{{topic}}"),
        ),
        graph(
            "Bytes read",
            "Of these messages, not compressed.",
            "Bps",
            (_rate("read_bytes_total"), "{{topic}}"),
        ),
        graph(
            "How far readers are behind",
            "Age of the last batch when it was read, by the clock of its producer. A reader that "
            "follows has some milliseconds.",
            "s",
            (_sum("read_lag_seconds", prefix=C).replace("sum", "max", 1), "{{topic}}"),
        ),
        graph(
            "Batches read",
            "Batches, or parts of them, that were handed out at once.",
            "ops",
            (_rate("read_batches_total"), "{{topic}}"),
        ),
        graph(
            "Messages in what is handed out at once",
            "The mean: a batch, or the part of one that was asked for.",
            "none",
            (f"{_rate('read_messages_total')} / {_rate('read_batches_total')}", "{{topic}}"),
        ),
        graph(
            "Gaps",
            "Places at which readers found that messages had been removed: retention was faster "
            "than they.",
            "none",
            (_sum("read_gaps_total", prefix=C), "{{topic}}"),
        ),
    ),
)

HELD = Row(
    "What topics hold",
    (
        graph(
            "Closed ledgers",
            "Those that are not removed yet.",
            "none",
            (_closed(), "{{topic}}"),
        ),
        graph(
            "Ledgers that are not closed",
            "The one that each lane writes, and the next ones that are prepared.",
            "none",
            (_not_closed(), "{{topic}} {{state}}"),
        ),
        graph(
            "Bytes",
            "Of closed ledgers, one copy of each.",
            "bytes",
            (_sum("bytes"), "{{topic}}"),
            stacked=True,
        ),
        graph(
            "Messages",
            "In closed ledgers.",
            "short",
            (_sum("messages"), "{{topic}}"),
            stacked=True,
        ),
        graph(
            "Lanes",
            "Of all partitions of a topic.",
            "none",
            (_sum("lanes"), "{{topic}}"),
        ),
        graph(
            "Lanes that somebody writes",
            "By the leases of their writers.",
            "none",
            (_sum("writers"), "{{topic}}"),
        ),
    ),
)

RETENTION = Row(
    "Retention",
    (
        graph(
            "Age of the oldest ledger",
            "Since it was made.",
            "s",
            (_age("oldest_timestamp_seconds"), "{{topic}}"),
        ),
        graph(
            "Beyond its time",
            "How much longer the oldest closed ledger is there than retention by age keeps it. "
            "Above 0: somebody needs it; `quire topic explain` says who.",
            "s",
            (
                f"clamp_min(({_age('oldest_closed_timestamp_seconds')}) - "
                f"max by(topic) ({T}retention_seconds{WHERE}), 0)",
                "{{topic}}",
            ),
        ),
        graph(
            "Ledgers removed",
            "By retention.",
            "ops",
            (
                f"sum by(topic) (rate({T}removed_ledgers_total{WHERE}[$__rate_interval]))",
                "{{topic}}",
            ),
        ),
        graph(
            "Bytes removed",
            "By retention, one copy of each ledger. Bookies free the space when they collect "
            "garbage.",
            "Bps",
            (
                f"sum by(topic) (rate({T}removed_bytes_total{WHERE}[$__rate_interval]))",
                "{{topic}}",
            ),
        ),
    ),
    across=2,
)

TOPICS = Dashboard(
    "topics",
    "quire / Topics and clients",
    "Producing, reading, batches, rolls and retention by topic. What clients count is told by "
    "those that serve metrics; what topics hold, by the bookie that leads.",
    (GLANCE, PRODUCE, ROLLS, READ, HELD, RETENTION),
    (Variable("topic", "Topic", T + "ledgers"),),
)
