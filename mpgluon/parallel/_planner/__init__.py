"""The planner: layers are measured, placements searched, and the best ones run, compiled or
both."""
