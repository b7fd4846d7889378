"""What the leader sees of the whole cluster, told by the metrics of its bookie.

    auditor ─────► ClusterFigures ─┐
    housekeeper ─► TopicFigures ───┼──► LeaderMetrics ──► /metrics of the bookie that leads
    looks ───────► JobFigures ─────┘

Only who leads tells: nothing is counted twice, and what a former leader saw is gone with its
term. Nothing here asks a bookie, and nobody waits for a scrape.
"""
