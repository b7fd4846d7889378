"""Replay: a range of topics, merged in one order, into a topic, Parquet files or a stream.

    lanes ──► source ──order──► chunks ──pace──► target
                                   └──► record of what it acknowledged

The range is fixed when a replay begins, and the order is the same on every run. So a replay that
was interrupted continues with the same messages under the same numbers.
"""
