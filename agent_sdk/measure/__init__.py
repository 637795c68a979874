"""Profiling, and what a plan is worth once it was measured."""
