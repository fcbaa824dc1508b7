"""What the process does around a solve: threads, memory, warnings at the caller's line."""
