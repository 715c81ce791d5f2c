"""Commands of the planner, a folder each."""
