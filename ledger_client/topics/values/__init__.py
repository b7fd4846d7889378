"""Values of messages by their topic's schema: what fields they have, and how bytes become them."""
