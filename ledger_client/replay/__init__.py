"""Replay: a range of topics, merged in one order, into a topic, Parquet files or a stream.

    lanes ──► source ──order──► chunks ──pace──► target
                                   └──► behind what it acknowledged: progress

The range is fixed when a replay begins, and the order is the same on every run: so a replay
that was cut short goes on with the same messages under the same numbers.
"""
