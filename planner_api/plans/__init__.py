"""Plans: found by key, served from memory, stored as the compressed bytes that are served."""
