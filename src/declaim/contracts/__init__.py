"""What crosses a boundary: frozen dataclasses, protocols and the error table. Imports no torch."""
