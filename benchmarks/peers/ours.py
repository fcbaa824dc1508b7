"""One alignment by this library in a process of its own: ``python ours.py IN.npz OUT.npz SEED EPSILON``."""

import sys
import time
import warnings

import numpy as np

import torchgw

warnings.simplefilter("ignore")
data, out, seed, epsilon = np.load(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
options = torchgw.GWOptions(
    spaces=torchgw.SpaceOptions(k=5),
    sampling=torchgw.SamplingOptions(n_anchors=80),
    stopping=torchgw.StoppingOptions(max_iter=300),
)


def solve(X, Y):
    return torchgw.gw_align(
        X, Y, distances="landmark", epsilon=epsilon, options=options, random_state=seed, device="cpu"
    )


solve(data["X"][:100], data["Y"][:120])
began = time.perf_counter()
result = solve(data["X"], data["Y"])
plan = result.plan.numpy()
np.savez(out, plan=plan, seconds=time.perf_counter() - began, iterations=result.n_iter)
