"""The alignment that most figures draw."""

import torchgw


def aligned(**asked):
    """Angles (200,) and (250,) along a spiral and a Swiss roll, and the result of matching them."""
    X, angle_x = torchgw.datasets.make_spiral(200)
    Y, angle_y = torchgw.datasets.make_swiss_roll(250, random_state=1)
    return angle_x, angle_y, torchgw.gw_align(X, Y, random_state=0, **asked)
