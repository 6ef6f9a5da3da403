"""declaim: serves expressive speech models as a stream. Imports nothing until it is used."""

__all__ = ["__version__"]

__version__ = "0.1.0"
