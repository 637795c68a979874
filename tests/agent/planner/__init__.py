"""Tests of the agent's side of the planner."""
