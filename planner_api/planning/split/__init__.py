"""Splits: which ops are computed in parts, along which axis and at which ratio, with placement and order."""
