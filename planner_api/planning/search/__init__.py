"""Annealing in windows, and the polishing of what it leaves."""
