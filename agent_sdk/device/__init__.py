"""The hardware: SoC, cores, and which processors they make."""
