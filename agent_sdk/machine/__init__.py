"""The hardware: SoC, cores and how they hang together, and how anything is timed on it. Knows no runtime."""
