"""Tests of explanations, pages and traces."""
