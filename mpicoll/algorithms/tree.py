"""Binary tree and double binary tree: reduce to the root and broadcast from it, in a pipeline.

::

             3                 Ranks are numbered from left to right, so that a subtree holds
         .---'---.             neighbouring ranks. A rank at depth d of a tree of height H gets
         1       5             chunk c from its children in turn c + (H-d) - 1, passes it up in turn
       .-'-.   .-'-.           c + (H-d), gets it back in turn c + H + d - 1 and passes it down in
       0   2   4   6           turn c + H + d: one clock for all, on which up and down overlap.

Steps of `binary_tree` with 2 chunks for 4 ranks (what each rank sends; ``+>`` is combined there, ``=>``
replaces)::

    step  rank 0  rank 1  rank 2  rank 3
    1     0 +> 1          0 +> 1
    2     1 +> 1  0 +> 3  1 +> 1
    3             1 +> 3          0 => 1
    4             0 => 0          1 => 1
                  0 => 2
    5             1 => 0
                  1 => 2

Cost for S chunks, H = floor(log2 p): 2H + S - 1 steps of M/S each, and up to 3 vectors sent by a rank with
two children: (2H + S - 1)(alpha + 3 M/S beta + 2 M/S gamma) where a rank's messages go one after the
other. Where S grows like sqrt(M), log2(p) multiplies little more than alpha. Medium and long vectors on
many ranks.

In one tree half of the ranks, the leaves, only send one vector. The double tree runs one half of the
chunks through each of two trees, and the inner ranks of one are leaves of the other. For even p the second
tree is the mirror image of the first; for odd p it is rank 0 on top of a tree of the other ranks.
Steps of `double_binary_tree` with 2 chunks for 4 ranks::

    step  rank 0  rank 1  rank 2  rank 3
    1     0 +> 1  1 +> 2  0 +> 1  1 +> 2
    2             0 +> 3  1 +> 0
    3     1 => 2                  0 => 1
    4             0 => 0  1 => 1
                  0 => 2  1 => 3

Cost: about 2 log2(p) + S/2 steps of M/S in each tree, and no more than (2 + 1/S) vectors sent by a rank;
(2 log2(p) + S/2)(alpha + 4 M/S beta + 2 M/S gamma).

Limits: none; operands are in rank order. The two trees' expressions differ. With a single chunk, a rank
with two children holds two more vectors while it combines them.

Source: P. Sanders, J. Speck and J. L. Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction
and scan", Parallel Computing 35 (2009).
"""

from typing import NamedTuple

from ..schedule import algorithm, mapped, recv, reduce, send, together
from ..schedule.schedule import Step, Steps

SOURCE = "Sanders, Speck & Traeff 2009"
CHUNKS = {"chunks": (1, 2, 3, 7)}


class Place(NamedTuple):
    """Where a rank is in a tree."""

    parent: int | None
    children: tuple[int, ...]
    depth: int
    height: int  # of the tree


def place(rank: int, size: int) -> Place:
    """Find a rank's place in the tree whose left subtrees are full and whose ranks are in order."""
    first, last, parent, depth = 0, size - 1, None, 0
    while (root := _root(first, last)) != rank:
        first, last = (first, root - 1) if rank < root else (root + 1, last)
        parent, depth = root, depth + 1
    sides = (first, rank - 1), (rank + 1, last)
    children = tuple(_root(*side) for side in sides if side[0] <= side[1])
    return Place(parent, children, depth, size.bit_length() - 1)


def crowned(rank: int, size: int) -> Place:
    """Find a rank's place where rank 0 is the root and has one child, the tree of all others."""
    if rank == 0:
        return Place(None, (1 + _root(0, size - 2),), 0, (size - 1).bit_length())
    parent, children, depth, height = place(rank - 1, size - 1)
    return Place(0 if parent is None else 1 + parent, tuple(1 + c for c in children), depth + 1, height + 1)


def up_and_down(place: Place, chunks: int) -> Steps:
    """Reduce every chunk to the root and broadcast it; a turn without a move is an empty step."""
    parent, children, depth, height = place
    for turn in range(chunks + 2 * height - 1 if height else 0):
        step: Step = ()
        if 0 <= (chunk := turn - (height - depth) + 1) < chunks:
            step += tuple(reduce(child, chunk) for child in children)
        if parent is not None and 0 <= (chunk := turn - (height - depth)) < chunks:
            step += (send(parent, chunk),)
        if parent is not None and 0 <= (chunk := turn - (height + depth) + 1) < chunks:
            step += (recv(parent, chunk),)
        if 0 <= (chunk := turn - (height + depth)) < chunks:
            step += tuple(send(child, chunk) for child in children)
        yield step


@algorithm(
    "allreduce",
    steps="(p > 1)*(2*floor(log(p, 2)) + S - 1)",
    sent="min(p-1, 3)",
    source=SOURCE,
    variants=CHUNKS,
)
def binary_tree(rank: int, size: int, chunks: int) -> Steps:
    """Chunks go up a binary tree, are combined at each rank, and come down again, in a pipeline."""
    yield from up_and_down(place(rank, size), chunks)


@algorithm(
    "allreduce",
    steps="<=2*floor(log(p, 2)) + 2*(p % 2) + ceil(S/2) - 1",
    sent="(p > 1)*(min(p-1, 3)*ceil(S/2) + floor(S/2))/S",
    source=SOURCE,
    variants=CHUNKS,
)
def double_binary_tree(rank: int, size: int, chunks: int) -> Steps:
    """Two binary trees with half of the chunks each, where no rank is inside both."""
    halves = range((chunks + 1) // 2), range((chunks + 1) // 2, chunks)
    first = up_and_down(place(rank, size), len(halves[0]))
    second: Steps
    if size % 2 == 0:
        mirror = range(size)[::-1]
        second = mapped(up_and_down(place(mirror[rank], size), len(halves[1])), ranks=mirror)
    elif size > 1:
        second = up_and_down(crowned(rank, size), len(halves[1]))
    else:
        return
    yield from together(mapped(first, chunks=halves[0]), mapped(second, chunks=halves[1]))


def _root(first: int, last: int) -> int:
    """Give the root of the tree of ranks `first` to `last`."""
    return first + (1 << ((last - first + 1).bit_length() - 1)) - 1
