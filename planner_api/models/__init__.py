"""Model graphs, kept under their hash."""
