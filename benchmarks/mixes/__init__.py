"""Several networks at once: ours beside the runtimes as their own users set them up."""
