"""Measurements: step times, metrics, reports."""
