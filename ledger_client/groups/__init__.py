"""Consumers in groups: membership, progress, and the messages of assigned partitions."""
