"""Values of messages by their topic's schema: their fields, and the decoding of bytes."""
