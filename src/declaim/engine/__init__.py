"""The loop that joins the stages: plan, run, update, emit."""
