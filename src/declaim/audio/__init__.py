"""Sound files and formats: samples to bytes and back; imports no torch."""
