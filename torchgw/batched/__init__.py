"""Small problems without entropy, many at once: what `torchgw.pairwise` solves its pairs with."""
