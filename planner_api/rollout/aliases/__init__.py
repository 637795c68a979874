"""Names for models: numbered versions, and aliases that may come to stand for another one."""
