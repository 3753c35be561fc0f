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
two children: at most (2H + S - 1) alpha + (4H + 3(S-1)) M/S beta + 2(H + S - 1) M/S gamma, with 2 ranks,
where each has one neighbour, half of 4H, a third of 3(S-1) and half of the gamma. Where S grows like
sqrt(M), log2(p) multiplies little more than alpha. Medium and long vectors on many ranks.

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
with h the height of the higher tree, floor(log2 p), or one more for odd p, at most (2h + ceil(S/2) - 1)
alpha + (h + ceil(S/2) - 1) (4 M/S beta + 2 M/S gamma), and with 2 ranks half of the beta and gamma.

A reduction goes up only, on a tree whose root is the given one, with the ranks below it in its left subtree
and those above in its right. Steps of the reduction `binary_tree` with 2 chunks for 4 ranks and root 0::

    step  rank 0  rank 1  rank 2  rank 3
    1             0 +> 2          0 +> 2
    2             1 +> 2  0 +> 0  1 +> 2
    3                     1 +> 0

Cost: at most log2(p) + S steps of M/S, and one vector sent by a rank; with H the height of the tree, at
most floor(log2(p-1)) + 1, H (alpha + 2 M/S beta + 2 M/S gamma) + 2(S-1) M/S max(beta, gamma) or less, and
with 2 ranks half of the beta and gamma.

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
HEIGHT = "floor(log(p, 2))"
HIGHER = f"({HEIGHT} + (p % 2)*(S > 1))"  # the height of the second tree, if there is one


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


def crowned(rank: int, size: int, root: int = 0) -> Place:
    """Find a rank's place under a given root: all ranks below it are in one tree, all above in another."""
    sides = range(root), range(root + 1, size)
    height = max(map(len, sides)).bit_length()
    if rank == root:
        return Place(None, tuple(_root(side[0], side[-1]) for side in sides if side), 0, height)
    side = sides[rank > root]
    parent, children, depth, _ = place(rank - side.start, len(side))
    above = root if parent is None else side.start + parent
    return Place(above, tuple(side.start + child for child in children), depth + 1, height)


def up(place: Place, turn: int, chunks: int) -> Step:
    """Give a rank's moves of one turn on the way to the root."""
    parent, children, depth, height = place
    step: Step = ()
    if 0 <= (chunk := turn - (height - depth) + 1) < chunks:
        step += tuple(reduce(child, chunk) for child in children)
    if parent is not None and 0 <= (chunk := turn - (height - depth)) < chunks:
        step += (send(parent, chunk),)
    return step


def down(place: Place, turn: int, chunks: int) -> Step:
    """Give a rank's moves of one turn on the way from the root, where chunk 0 is there in turn `height`."""
    parent, children, depth, height = place
    step: Step = ()
    if parent is not None and 0 <= (chunk := turn - (height + depth) + 1) < chunks:
        step += (recv(parent, chunk),)
    if 0 <= (chunk := turn - (height + depth)) < chunks:
        step += tuple(send(child, chunk) for child in children)
    return step


def up_and_down(place: Place, chunks: int) -> Steps:
    """Reduce every chunk to the root and broadcast it; a turn without a move is an empty step."""
    for turn in range(chunks + 2 * place.height - 1 if place.height else 0):
        yield up(place, turn, chunks) + down(place, turn, chunks)


@algorithm(
    "allreduce",
    steps="(p > 1)*(2*floor(log(p, 2)) + S - 1)",
    sent="min(p-1, 3)",
    time=(
        f"<=(p > 1)*((2*{HEIGHT} + S - 1)*alpha + (2*{HEIGHT}*min(2, p-1) + (S-1)*min(3, p-1))*beta/S"
        f" + min(2, p-1)*({HEIGHT} + S - 1)*gamma/S)"
    ),
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
    time=(
        f"<=(p > 1)*((2*{HIGHER} + ceil(S/2) - 1)*alpha"
        f" + min(2, p-1)*({HIGHER} + ceil(S/2) - 1)*(2*beta + gamma)/S)"
    ),
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


@algorithm(
    "reduce",
    name="binary_tree",
    steps="(p > 1)*(floor(log(max(1, root, p-1-root), 2)) + S)",
    sent="min(1, p-1)",
    time=(
        "<=(floor(log(max(1, root, p-1-root), 2)) + 1)*((p > 1)*alpha + min(2, p-1)*(beta + gamma)/S)"
        " + min(2, p-1)*(S-1)/S*max(beta, gamma)"
    ),
    source=SOURCE,
    variants=CHUNKS,
)
def reduction(rank: int, size: int, chunks: int, root: int = 0) -> Steps:
    """Chunks go up a binary tree and are combined at each rank, in a pipeline."""
    where = crowned(rank, size, root)
    for turn in range(chunks + where.height - 1 if where.height else 0):
        yield up(where, turn, chunks)


def _root(first: int, last: int) -> int:
    """Give the root of the tree of ranks `first` to `last`."""
    return first + (1 << ((last - first + 1).bit_length() - 1)) - 1
