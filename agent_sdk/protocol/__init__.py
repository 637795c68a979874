"""The Open Inference Protocol over gRPC: its messages, for who serves and who asks."""
