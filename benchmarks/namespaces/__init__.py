"""Device, edge and cloud in network namespaces of this machine, their links shaped."""
