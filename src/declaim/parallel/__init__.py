"""Ranks as an object."""
