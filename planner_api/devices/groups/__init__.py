"""Groups of devices: chosen by SoC, by label, and as a stable share."""
