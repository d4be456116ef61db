"""The planner: measures layers, searches placements, and compiles or runs the best ones."""
