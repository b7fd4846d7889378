"""Jobs that work on a topic: what they need kept, what they stage, and how it is shown."""
