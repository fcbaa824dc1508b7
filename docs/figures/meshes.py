"""An egg and a turned copy of it, as surfaces."""

import numpy as np
from scipy.spatial import ConvexHull

import torchgw

i = np.arange(400) + 0.5
turn, height = np.pi * (1 + 5**0.5) * i, 1 - i / 200
radius = np.sqrt(1 - height**2)
ball = np.column_stack((radius * np.cos(turn), radius * np.sin(turn), height))
egg = ball * (1, 0.7, 1.5) * (1 + 0.3 * ball[:, 2:])
faces = ConvexHull(ball).simplices
turned = egg[:, [2, 1, 0]] * (1, 1, -1)
surfaces = torchgw.gw_align(egg, turned, distances="euclidean", random_state=0)
torchgw.plot.matching(surfaces, (egg, faces), (turned, faces), colors=egg[:, 2], n_lines=0)
