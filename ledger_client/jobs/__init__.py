"""Jobs that write what readers then see: staging, compaction, replay."""
