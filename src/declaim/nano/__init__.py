"""Checkpoints that declaim makes itself."""
