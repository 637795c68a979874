"""One file or folder per method, each with the same verb: solve(problem, budget) -> Solution."""
