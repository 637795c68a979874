"""One module per group of pages: what a page needs, put together; the templates draw it."""
