"""ONNX Runtime: its processors, and segments cut from its own optimised graph."""
