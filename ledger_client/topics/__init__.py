"""Topics: partitions made of ledgers, producers that write them, readers that read them."""
