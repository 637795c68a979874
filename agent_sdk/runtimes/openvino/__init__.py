"""OpenVINO: its processors."""
