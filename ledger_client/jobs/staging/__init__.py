"""Jobs that work on a topic: the ledgers they pin, stage and finally show."""
