"""StepPlan to StepResult on one device."""
