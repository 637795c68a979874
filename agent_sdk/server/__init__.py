"""Networks served to other programs: the Open Inference Protocol over HTTP and gRPC."""
