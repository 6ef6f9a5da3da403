"""Arithmetic: the op table (the contract) and its readable PyTorch reference (the oracle)."""
