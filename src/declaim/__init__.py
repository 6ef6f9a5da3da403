"""declaim: serves expressive speech models as a stream. Imports nothing until it is used."""

__version__ = "0.1.0"
