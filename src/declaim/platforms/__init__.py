"""Devices: what a stage runs on."""
