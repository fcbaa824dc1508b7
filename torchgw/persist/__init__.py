"""Files that nobody vouches for, files with a checksum, checkpoints, and who follows a solve."""
