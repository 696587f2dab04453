"""What requests get: a reply that a retry gets again, a page, a stream, or an error."""
