"""Tests of who answers."""
