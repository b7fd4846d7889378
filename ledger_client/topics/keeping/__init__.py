"""What stays and what goes: retention, purges, deletions, and the leader who sees to it."""
