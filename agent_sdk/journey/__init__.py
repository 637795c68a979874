"""The journey of a network: planned, opened, tried, and served by whoever is fastest."""
