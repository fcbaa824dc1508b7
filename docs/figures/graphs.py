"""The karate club, and a copy that has lost some friendships."""

import networkx as nx

import torchgw

club = nx.karate_club_graph()
other = nx.relabel_nodes(club, {i: f"member {i}" for i in club})
other.remove_edges_from(list(other.edges)[::20])
matched = torchgw.gw_align(club, other, distances="adjacency", random_state=0)
torchgw.plot.matching(matched, colors=[club.nodes[i]["club"] for i in club])
