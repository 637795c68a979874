"""Charts as plain geometry, worked out here and drawn by the templates: nothing of them needs a script."""
