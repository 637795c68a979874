"""Who solves what, where, exactly once: the solve queue, its workers, and how the news of a plan travels."""
