"""The CPU: the default platform, complete."""
