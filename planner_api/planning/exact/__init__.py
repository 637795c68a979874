"""Optima of pieces between the ops that everything must pass."""
