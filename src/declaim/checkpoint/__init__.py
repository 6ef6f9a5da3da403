"""Files to and from the network's parameter names, and on to weight handles."""
