"""Tests of planner_api.prediction."""
