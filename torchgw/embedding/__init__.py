"""Joint embeddings of aligned spaces."""

from torchgw.embedding.joint import JointEmbedding, joint_embedding

__all__ = ["JointEmbedding", "joint_embedding"]
