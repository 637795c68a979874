"""Tests of planner_api.planning."""
