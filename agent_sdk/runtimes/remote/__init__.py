"""Processors of other machines, over the Open Inference Protocol."""
