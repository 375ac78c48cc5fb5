"""The cheapest way to cut a sink off from a source: Dinic's algorithm on whole numbers."""

from __future__ import annotations

from collections import deque

__all__ = ["FOREVER", "Network"]

FOREVER = 1 << 80
"""An edge that is never cut."""


class Network:
    """Edges with capacities between numbered nodes; node 0 is the source, node 1 the sink."""

    def __init__(self) -> None:
        self._edges: list[list[int]] = [[], []]
        """Of each node, numbers of edges; edge e ^ 1 goes back."""
        self._to: list[int] = []
        self._capacity: list[int] = []

    def node(self) -> int:
        self._edges.append([])
        return len(self._edges) - 1

    def edge(self, begin: int, end: int, capacity: int) -> None:
        for node, other, amount in ((begin, end, capacity), (end, begin, 0)):
            self._edges[node].append(len(self._to))
            self._to.append(other)
            self._capacity.append(amount)

    def source_side(self) -> set[int]:
        """The nodes on the source's side of the cheapest cut."""
        while True:
            levels = self._levels()
            if levels[1] < 0:
                return {node for node, level in enumerate(levels) if level >= 0}
            next_edge = [0] * len(self._edges)
            while self._push(levels, next_edge):
                pass

    def _levels(self) -> list[int]:
        levels = [-1] * len(self._edges)
        levels[0] = 0
        waiting = deque([0])
        while waiting:
            node = waiting.popleft()
            for edge in self._edges[node]:
                if self._capacity[edge] > 0 and levels[self._to[edge]] < 0:
                    levels[self._to[edge]] = levels[node] + 1
                    waiting.append(self._to[edge])
        return levels

    def _push(self, levels: list[int], next_edge: list[int]) -> int:
        """Send what one more path carries; 0 if there is none in these levels."""
        path: list[int] = []
        node = 0
        while node != 1:
            edges = self._edges[node]
            while next_edge[node] < len(edges) and not self._leads_on(node, edges[next_edge[node]], levels):
                next_edge[node] += 1
            if next_edge[node] < len(edges):
                path.append(edges[next_edge[node]])
                node = self._to[path[-1]]
            elif not path:
                return 0
            else:
                node = self._to[path.pop() ^ 1]
                next_edge[node] += 1
        sent = min(self._capacity[edge] for edge in path)
        for edge in path:
            self._capacity[edge] -= sent
            self._capacity[edge ^ 1] += sent
        return sent

    def _leads_on(self, node: int, edge: int, levels: list[int]) -> bool:
        return self._capacity[edge] > 0 and levels[self._to[edge]] == levels[node] + 1
