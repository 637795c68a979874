"""Latencies that nobody measured: predicted from what is known of an op, with the spread of each prediction.

Pure functions on plain data, a predictor per kind of processor. ``features`` says what is known of an op, ``lines`` is
CoDL's formula as a robust regression, ``predictor`` puts what the lines leave unexplained back where something similar
was measured, and ``complete`` fills in what a profile lacks. ``asking`` finds the figures that would tell the most.
"""
