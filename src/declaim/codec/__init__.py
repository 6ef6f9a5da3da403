"""Frames to sound: the causal codec and its streaming state."""
