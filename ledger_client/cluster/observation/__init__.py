"""Metrics of the whole cluster, published by the bookie that leads.

    auditor ─────► ClusterFigures ─┐
    housekeeper ─► TopicFigures ───┼──► LeaderMetrics ──► /metrics of the bookie that leads
    looks ───────► JobFigures ─────┘

Only the leader publishes them, so nothing is counted twice, and a deposed leader's figures
disappear. No bookie is asked for them, and a scrape waits for nothing.
"""
