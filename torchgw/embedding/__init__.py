"""Joint embeddings of aligned spaces."""
