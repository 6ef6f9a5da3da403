"""Text to a Prompt; imports no torch."""
