"""Tests of the hardware."""
