"""The client's sockets: connections to bookies, their frames and answers."""
