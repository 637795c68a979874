"""Hostile devices and strangers against a planner on loopback: what the others notice, and what they must not do."""
