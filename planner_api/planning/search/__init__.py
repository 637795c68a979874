"""Annealing in windows."""
