"""Faults to plant in a copy of the package, by what they break, and what plants them."""
