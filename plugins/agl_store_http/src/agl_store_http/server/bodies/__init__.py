"""What requests bring: their JSON, read in pieces and within limits."""
