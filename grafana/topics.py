"""The dashboard of topics, and of the clients that write and read them."""

from __future__ import annotations

from grafana.panels import Dashboard, PanelRow, Variable, graph, quantiles, stat

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


GLANCE = PanelRow(
    "Now",
    (
        stat("Topics", "Topics in the cluster.", "none", "max(quire_cluster_topics)"),
        stat(
            "Sent",
            "Messages acknowledged a second, of the scraped clients.",
            "ops",
            f"sum({_rate('sent_messages_total')})",
        ),
        stat(
            "Read",
            "Messages delivered a second by readers.",
            "ops",
            f"sum({_rate('read_messages_total')})",
        ),
        stat(
            "Send p99",
            "99 % of batches were acknowledged within this time after their first message.",
            "s",
            f"histogram_quantile(0.99, {_rate('send_seconds_bucket', 'le')})",
        ),
        stat(
            "Closed messages",
            "Messages in closed ledgers of all topics.",
            "short",
            f"sum({T}messages{WHERE})",
        ),
        stat("Closed bytes", "Bytes of these ledgers, one copy.", "bytes", f"sum({T}bytes{WHERE})"),
    ),
    across=6,
)

PRODUCE = PanelRow(
    "Producers",
    (
        graph(
            "Messages acknowledged",
            "Messages a second that are durable on the ack quorum.",
            "ops",
            (_rate("sent_messages_total"), "{{topic}}"),
        ),
        graph(
            "Bytes acknowledged",
            "Bytes of entries as sent, after compression, one copy.",
            "Bps",
            (_rate("sent_bytes_total"), "{{topic}}"),
        ),
        graph(
            "Batches acknowledged",
            "Batches a second; each is one entry of a ledger.",
            "ops",
            (_rate("batch_bytes_count"), "{{topic}}"),
        ),
        graph(
            "From a message to its acknowledgement: median",
            "Time from a batch's first message: linger, queue, network and the bookies' sync.",
            "s",
            *quantiles(C + "send_seconds", WHERE, "topic", levels=(0.5,)),
        ),
        graph(
            "From a message to its acknowledgement: p99",
            "Time of the slowest batch in a hundred. Losing a bookie shows here.",
            "s",
            *quantiles(C + "send_seconds", WHERE, "topic", levels=(0.99,)),
        ),
        graph(
            "Bytes in a batch",
            "A batch is one entry. Small ones cost bookies as much as large ones.",
            "bytes",
            *quantiles(C + "batch_bytes", WHERE, "topic"),
        ),
        graph(
            "Messages in a batch",
            "Mean number of messages.",
            "none",
            (f"{_rate('sent_messages_total')} / {_rate('batch_bytes_count')}", "{{topic}}"),
        ),
        graph(
            "Bytes under way",
            "Bytes sent and not acknowledged. At a producer's limit, send() waits.",
            "bytes",
            (_sum("under_way_bytes", prefix=C), "{{topic}}"),
        ),
        graph(
            "Messages that failed",
            "Failures a second by error. After SendUnknown, messages may or may not be stored.",
            "ops",
            (_rate("send_errors_total", "topic,kind"), "{{topic}} {{kind}}"),
        ),
    ),
)

ROLLS = PanelRow(
    "Rolling from ledger to ledger",
    (
        graph(
            "Rolls",
            "Rolls a second of lanes to their next ledger.",
            "ops",
            (_rate("roll_seconds_count"), "{{topic}}"),
        ),
        graph(
            "Duration of a roll",
            "The lane's batches wait meanwhile: some milliseconds, or longer if the ledger failed.",
            "s",
            *quantiles(C + "roll_seconds", WHERE, "topic"),
        ),
        graph(
            "Rolls after a failure, and takeovers",
            "Recovered: a ledger failed. Taken over: a lane whose last writer had left it open.",
            "ops",
            (_rate("recoveries_total"), "{{topic}} recovered"),
            (_rate("takeovers_total"), "{{topic}} taken over"),
        ),
    ),
)

READ = PanelRow(
    "Readers",
    (
        graph(
            "Messages read",
            "Messages delivered a second by readers.",
            "ops",
            (_rate("read_messages_total"), "{{topic}}"),
        ),
        graph(
            "Bytes read",
            "Bytes of these messages, uncompressed.",
            "Bps",
            (_rate("read_bytes_total"), "{{topic}}"),
        ),
        graph(
            "Lag of readers",
            "Age of the last batch when it was read, by the cluster's clock. A reader that follows "
            "has some milliseconds.",
            "s",
            (_sum("read_lag_seconds", prefix=C).replace("sum", "max", 1), "{{topic}}"),
        ),
        graph(
            "Batches read",
            "Batches, or parts of them, delivered at once.",
            "ops",
            (_rate("read_batches_total"), "{{topic}}"),
        ),
        graph(
            "Messages delivered at once",
            "Mean number of messages: of a batch, or of the requested part of one.",
            "none",
            (f"{_rate('read_messages_total')} / {_rate('read_batches_total')}", "{{topic}}"),
        ),
        graph(
            "Gaps and outages",
            "Positions where readers found messages removed, as retention was faster than they "
            "were; and times that a lane waited for its bookies or for metadata.",
            "none",
            (_sum("read_gaps_total", prefix=C), "{{topic}} gaps"),
            (_sum("read_outages_total", prefix=C), "{{topic}} outages"),
        ),
    ),
)

HELD = PanelRow(
    "Contents of topics",
    (
        graph(
            "Closed ledgers",
            "Closed ledgers that retention has not removed yet.",
            "none",
            (_closed(), "{{topic}}"),
        ),
        graph(
            "Open and prepared ledgers",
            "The ledger that each lane writes, and those prepared for the next roll.",
            "none",
            (_not_closed(), "{{topic}} {{state}}"),
        ),
        graph(
            "Bytes",
            "Bytes of closed ledgers, one copy.",
            "bytes",
            (_sum("bytes"), "{{topic}}"),
            stacked=True,
        ),
        graph(
            "Messages",
            "Messages in closed ledgers.",
            "short",
            (_sum("messages"), "{{topic}}"),
            stacked=True,
        ),
        graph(
            "Lanes",
            "Lanes of all partitions of a topic.",
            "none",
            (_sum("lanes"), "{{topic}}"),
        ),
        graph(
            "Lanes with a writer",
            "Lanes whose writers hold a lease.",
            "none",
            (_sum("writers"), "{{topic}}"),
        ),
    ),
)

RETENTION = PanelRow(
    "Retention",
    (
        graph(
            "Age of the oldest ledger",
            "Time since it was created.",
            "s",
            (_age("oldest_timestamp_seconds"), "{{topic}}"),
        ),
        graph(
            "Overdue",
            "How far the oldest closed ledger is past its retention by age. Above 0, something "
            "keeps "
            "it: `quire topic explain` shows what.",
            "s",
            (
                f"clamp_min(({_age('oldest_closed_timestamp_seconds')}) - "
                f"max by(topic) ({T}retention_seconds{WHERE}), 0)",
                "{{topic}}",
            ),
        ),
        graph(
            "Ledgers removed",
            "Ledgers removed a second by retention.",
            "ops",
            (
                f"sum by(topic) (rate({T}removed_ledgers_total{WHERE}[$__rate_interval]))",
                "{{topic}}",
            ),
        ),
        graph(
            "Bytes removed",
            "Bytes removed by retention, one copy. Bookies free the space at their next garbage "
            "collection.",
            "Bps",
            (
                f"sum by(topic) (rate({T}removed_bytes_total{WHERE}[$__rate_interval]))",
                "{{topic}}",
            ),
        ),
    ),
    across=2,
)

TICKS = PanelRow(
    "Ticks of topics with timesync",
    (
        graph(
            "Lag of ticks",
            "From the newest tick to the cluster's time, some tenths of a second. Readers in the "
            "order of timestamps wait for ticks.",
            "s",
            (f"max by(topic) ({T}tick_lag_seconds{WHERE})", "{{topic}}"),
        ),
        graph(
            "Lanes that hold ticks back",
            "Open lanes that let no later tick be made: messages without an acknowledgement, or a "
            "producer that reports nothing. For a moment that is normal.",
            "none",
            (_sum("tick_holding_lanes"), "{{topic}}"),
        ),
        graph(
            "Ticks stored",
            "Ticks stored a second; none while nothing is written.",
            "ops",
            (
                f"sum by(topic) (rate({T}ticks_stored_total{WHERE}[$__rate_interval]))",
                "{{topic}}",
            ),
        ),
        graph(
            "Reports refused, lanes closed, late timestamps",
            "Reports that came from a former writer of a lane; lanes of dead producers that the "
            "leader closed; answers of the oracle that clients dropped because they came too late.",
            "none",
            (
                "sum(increase(quire_cluster_tick_reports_refused_total[$__rate_interval]))",
                "refused",
            ),
            ("sum(increase(quire_cluster_tick_lanes_closed_total[$__rate_interval]))", "closed"),
            (f"sum(increase({C}late_timestamps_total[$__rate_interval]))", "late"),
        ),
    ),
    across=2,
)

TOPICS = Dashboard(
    "topics",
    "quire / Topics and clients",
    "Producing, reading, batches, rolls and retention by topic. Clients that serve metrics "
    "publish what they count, and the leader publishes the contents of topics.",
    (GLANCE, PRODUCE, ROLLS, READ, HELD, RETENTION, TICKS),
    (Variable("topic", "Topic", T + "ledgers"),),
)
