"""Strongly connected components and shortest paths in directed graphs given as adjacency lists."""

from collections import deque
from collections.abc import Callable, Sequence

Graph = Sequence[Sequence[int]]


def components(graph: Graph) -> list[list[int]]:
    """Return the components with more than one node (Tarjan, without recursion)."""
    index: list[int | None] = [None] * len(graph)
    low = [0] * len(graph)
    on_stack = [False] * len(graph)
    stack: list[int] = []
    found: list[list[int]] = []
    count = 0
    for root in range(len(graph)):
        if index[root] is not None:
            continue
        work = [(root, iter(graph[root]))]
        index[root] = low[root] = count
        count += 1
        stack.append(root)
        on_stack[root] = True
        while work:
            node, successors = work[-1]
            for successor in successors:
                seen = index[successor]
                if seen is None:
                    index[successor] = low[successor] = count
                    count += 1
                    stack.append(successor)
                    on_stack[successor] = True
                    work.append((successor, iter(graph[successor])))
                    break
                if on_stack[successor]:
                    low[node] = min(low[node], seen)
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    found.append(_popped(stack, on_stack, node))
    return [component for component in found if len(component) > 1]


def _popped(stack: list[int], on_stack: list[bool], root: int) -> list[int]:
    component = []
    while True:
        node = stack.pop()
        on_stack[node] = False
        component.append(node)
        if node == root:
            return component


def path(
    graph: Graph, start: int, end: int, allowed: Callable[[int, int], bool]
) -> list[int] | None:
    """Return the nodes of a shortest path over allowed edges, from ``start`` to ``end``."""
    came_from = {start: start}
    queue = deque([start])
    while queue:
        node = queue.popleft()
        if node == end:
            return _walk_back(came_from, start, end)
        for successor in graph[node]:
            if successor not in came_from and allowed(node, successor):
                came_from[successor] = node
                queue.append(successor)
    return None


def _walk_back(came_from: dict[int, int], start: int, end: int) -> list[int]:
    nodes = [end]
    while nodes[-1] != start:
        nodes.append(came_from[nodes[-1]])
    return nodes[::-1]
