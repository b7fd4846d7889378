"""Consumer groups: their rows, who reads which partition, and the coordinator's decisions."""
