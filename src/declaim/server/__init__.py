"""HTTP in, bytes out; knows the engine only as the protocol in contracts."""
