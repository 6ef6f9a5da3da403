"""The network: structure and views; computes only through the op table."""
