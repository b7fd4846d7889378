"""Producers: from a message that is sent to the batch that a lane takes."""
