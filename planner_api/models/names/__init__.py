"""Names for models: each with numbered versions."""
