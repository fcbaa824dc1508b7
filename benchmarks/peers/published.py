"""One alignment by torchgw 0.4.2 from the registry: ``python published.py IN.npz OUT.npz SEED MIXED``."""

import sys
import time

import numpy as np
import torch

from torchgw import sampled_gw

data, out, seed, mixed = np.load(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4] == "mixed"
settings = {"distance_mode": "landmark", "M": 80, "epsilon": 0.005, "k": 5, "max_iter": 300, "mixed_precision": mixed}

torch.manual_seed(seed)
sampled_gw(data["X"][:100], data["Y"][:120], **{**settings, "max_iter": 3})
began = time.perf_counter()
plan, log = sampled_gw(data["X"], data["Y"], log=True, **settings)
plan = plan.numpy()
np.savez(out, plan=plan, seconds=time.perf_counter() - began, iterations=log["n_iter"])
