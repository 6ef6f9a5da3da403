"""Prompt to StepPlan: pure integers and decisions; imports no torch."""
