"""Compaction of topics: the latest message of each key, kept for good."""
