"""Removal of messages: retention, purges, truncation, deletion of topics, and pins."""
