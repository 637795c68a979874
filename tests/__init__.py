"""Tests, one folder per package of the house."""
