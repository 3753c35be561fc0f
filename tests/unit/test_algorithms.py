"""Every registered all-reduce: proved at many sizes, and what its file says of it."""

import inspect
import sys
import textwrap
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mpicoll.algorithms  # noqa: F401, registers them
from mpicoll.algorithms import tree
from mpicoll.schedule import algorithms, find
from mpicoll.schedule.drawing import table
from mpicoll.schedule.moves import slots
from mpicoll.schedule.proof import check, placements, prove, verify

NAMES = [found.name for found in algorithms("allreduce")]
FLAT = [found.name for found in algorithms("allreduce") if not found.two_level]
IN_RANK_ORDER = {
    "binary_tree",
    "bruck_gather",
    "direct",
    "double_binary_tree",
    "recursive_doubling",
    "recursive_halving_doubling",
    "star",
}
# where one expression computes every chunk, at every size
UNIFORM = IN_RANK_ORDER - {"direct", "double_binary_tree"}


def schedule(name, size, **parameters):
    found = find("allreduce", name)
    first = {key: values[0] for key, values in found.variants.items()}
    return found.schedule(size, **first | parameters)


def test_the_families():
    assert set(NAMES) == IN_RANK_ORDER | {"ring", "bidirectional_ring", "bruck", "circulant", "two_level"}
    assert {found.name for found in algorithms() if not found.commutative} == IN_RANK_ORDER
    assert all(found.serves(size) for found in algorithms() for size in range(1, 40))


@pytest.mark.parametrize("name", NAMES)
def test_proved_for_1_to_33_ranks(name):
    wrong = [(v.size, v.parameters, v.message) for v in verify(range(1, 34), names=[name]) if not v.ok]
    assert not wrong


@pytest.mark.parametrize("size", [64, 100, 128])
@pytest.mark.parametrize("name", NAMES)
def test_proved_for_many_ranks(name, size):
    found = find("allreduce", name)
    parameters = {key: values[-1] for key, values in found.variants.items()}
    where = placements(size)
    chosen = ["8 ranks a node" if size % 8 == 0 else "8 ranks a node, the last one smaller", "random"]
    for nodes in [where[name] for name in chosen] if found.two_level else [None]:
        proof = check(found, size, nodes=nodes, **parameters)
        if name in UNIFORM:
            assert proof.uniform


@pytest.mark.parametrize("name", NAMES)
def test_the_table_in_the_file_is_of_this_schedule(name):
    parameters = {}
    if name == "two_level":
        parameters["nodes"] = ((0, 1), (2, 3))
    elif find("allreduce", name).pipelined:
        parameters["chunks"] = 2
    text = sys.modules[find("allreduce", name).function.__module__].__doc__
    assert textwrap.indent(table(schedule(name, 4, **parameters)), "    ") + "\n" in text


@pytest.mark.parametrize("name", NAMES)
def test_the_file_says_what_a_reader_wants_to_know(name):
    found = find("allreduce", name)
    text = inspect.getdoc(sys.modules[found.function.__module__])
    for part in ("Cost", "alpha", "beta", "gamma", "Limits:", "Source:"):
        assert part in text
    assert found.summary.endswith(".")


@pytest.mark.parametrize("name", IN_RANK_ORDER)
@pytest.mark.parametrize("size", [3, 6, 16])
def test_whether_chunks_are_computed_alike(name, size):
    assert prove(schedule(name, size, **{"chunks": 4} if "tree" in name else {})).uniform == (name in UNIFORM)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 6, 7, 8, 24, 33])
def test_algorithms_with_the_same_bits(size):
    def expressions(name, **parameters):
        return prove(schedule(name, size, **parameters)).expressions

    assert expressions("recursive_doubling") == expressions("recursive_halving_doubling")
    assert expressions("star") == expressions("bruck_gather") == expressions("bruck_gather", radix=4)
    assert expressions("binary_tree", chunks=1) == expressions("binary_tree", chunks=7)


@pytest.mark.parametrize(
    ("name", "parameters", "expression"),
    [
        ("recursive_doubling", {}, "(((0+1)+(2+3))+(4+5))"),
        ("recursive_halving_doubling", {}, "(((0+1)+(2+3))+(4+5))"),
        ("star", {}, "(((((0+1)+2)+3)+4)+5)"),
        ("bruck_gather", {}, "(((((0+1)+2)+3)+4)+5)"),
        ("direct", {}, "(((((0+1)+2)+3)+4)+5)"),
        ("ring", {}, "(((((0+1)+2)+3)+4)+5)"),
        ("bidirectional_ring", {}, "((0+((3+4)+5))+(1+2))"),
        ("circulant", {}, "(((0+3)+(1+4))+(2+5))"),
        ("binary_tree", {"chunks": 2}, "((((0+1)+2)+3)+(4+5))"),
        ("two_level", {"nodes": ((0, 2, 4), (1, 3, 5))}, "(((0+2)+4)+((1+3)+5))"),
    ],
)
def test_how_rank_0_computes_chunk_0(name, parameters, expression):
    assert prove(schedule(name, 6, **parameters)).expression == expression


def test_chunks_of_a_ring_are_computed_from_their_number_on():
    assert prove(schedule("ring", 3)).expressions == {"((0+1)+2)", "(0+(1+2))", "((0+2)+1)"}


@pytest.mark.parametrize("size", range(1, 40))
def test_steps_and_bytes_that_are_the_least_possible(size):
    rounds = (size - 1).bit_length()
    least = Fraction(2 * (size - 1), size)
    for name in ("circulant", "bruck"):
        assert find("allreduce", name).cost(size) == (2 * rounds, least)
    for name in ("ring", "bidirectional_ring", "direct"):
        assert find("allreduce", name).cost(size)[1] == least
    if size & (size - 1) == 0:
        assert find("allreduce", "recursive_halving_doubling").cost(size) == (2 * rounds, least)
        assert find("allreduce", "recursive_doubling").cost(size) == (rounds, rounds)


def test_a_single_rank_has_no_steps():
    for name in NAMES:
        assert list(schedule(name, 1).steps(0)) in ([], [()])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [2, 3, 8, 13])
def test_no_more_than_a_vector_is_on_its_way_to_a_rank_that_combines_it(name, size):
    # with a single chunk, a rank of a tree that has two children gets two
    found = schedule(name, size, **{"chunks": 2} if "tree" in name else {})
    for rank in range(size):
        for step in found.steps(rank):
            combined = sum(len(list(slots(move.chunks))) for move in step if move.kind == "reduce")
            assert combined <= found.chunks


@pytest.mark.parametrize("name", NAMES)
def test_messages_are_one_or_two_runs(name):
    for size in (5, 8, 13):
        for nodes in placements(size).values() if name == "two_level" else [None]:
            found = schedule(name, size, nodes=nodes) if nodes else schedule(name, size)
            moves = [move for rank in range(size) for step in found.steps(rank) for move in step]
            assert max(len(move.chunks) for move in moves) <= (1 if name == "two_level" else 2)


def test_halving_doubling_of_many_ranks_has_few_runs():
    found = schedule("recursive_halving_doubling", 65536)
    for rank in (0, 1, 40000, 65535):
        steps = list(found.steps(rank))
        assert len(steps) == 32
        assert all(len(move.chunks) == 1 for step in steps for move in step)
    odd = schedule("recursive_halving_doubling", 65535)
    assert odd.chunks == 32768
    assert len(list(odd.steps(65534))) == 30


# trees


@given(st.integers(1, 300))
def test_the_tree_is_a_tree_in_order(size):
    places = [tree.place(rank, size) for rank in range(size)]
    (root,) = [rank for rank, place in enumerate(places) if place.parent is None]

    def in_order(rank):
        children = places[rank].children
        assert all(places[child].parent == rank for child in children)
        assert all(places[child].depth == places[rank].depth + 1 for child in children)
        left, right = ([child for child in children if (child < rank) is side] for side in (True, False))
        assert max(len(left), len(right)) <= 1
        return [r for c in left for r in in_order(c)] + [rank] + [r for c in right for r in in_order(c)]

    assert in_order(root) == list(range(size))
    assert max(place.depth for place in places) == places[0].height == size.bit_length() - 1


@pytest.mark.parametrize("size", range(2, 60))
def test_no_rank_is_inside_both_trees(size):
    children = [[set(), set()] for _ in range(size)]
    double = schedule("double_binary_tree", size, chunks=2)
    for rank in range(size):
        for step in double.steps(rank):
            for move in step:
                if move.kind == "reduce":
                    (chunk,) = slots(move.chunks)
                    children[rank][chunk].add(move.peer)
    assert not any(first and second for first, second in children)
    assert all(len(peers) <= 2 for both in children for peers in both)


@given(st.integers(1, 40), st.integers(1, 30))
@settings(deadline=None, max_examples=50)
def test_pipelines_of_any_length(size, chunks):
    for name in ("binary_tree", "double_binary_tree"):
        check(find("allreduce", name), size, chunks=chunks)


@given(st.integers(1, 32), st.integers(2, 35))
@settings(deadline=None, max_examples=50)
def test_any_radix(size, radix):
    for name in ("bruck", "bruck_gather"):
        check(find("allreduce", name), size, radix=radix)


def test_a_radix_of_one_gets_nowhere():
    with pytest.raises(ValueError, match="radix 1, expected at least 2"):
        list(schedule("bruck", 4, radix=1).steps(0))


# two levels


@st.composite
def drawn_nodes(draw):
    """Draw any placement of up to 16 ranks: any rank on any node, nodes in any order."""
    node_of = draw(st.lists(st.integers(0, 5), min_size=1, max_size=16))
    nodes = [tuple(r for r, n in enumerate(node_of) if n == node) for node in set(node_of)]
    return tuple(draw(st.permutations(nodes)))


@given(drawn_nodes(), st.sampled_from(FLAT), st.data())
@settings(deadline=None)
def test_any_flat_algorithm_on_any_placement(nodes, inter, data):
    size, fewest = sum(map(len, nodes)), min(map(len, nodes))
    flat = find("allreduce", inter)
    parameters = {key: data.draw(st.sampled_from(values)) for key, values in flat.variants.items()}
    leaders = 1 if inter == "bruck_gather" else data.draw(st.none() | st.integers(1, fewest))
    proof = check(
        find("allreduce", "two_level"), size, nodes=nodes, leaders=leaders, inter=inter, **parameters
    )
    in_order = [rank for node in sorted(nodes) for rank in node] == list(range(size)) and list(
        nodes
    ) == sorted(nodes)
    if in_order and not flat.commutative:
        assert proof.rank_order


@given(drawn_nodes(), st.data())
@settings(deadline=None)
def test_the_registered_cost_is_exact_with_the_ring(nodes, data):
    leaders = data.draw(st.none() | st.integers(1, min(map(len, nodes))))
    found, size = find("allreduce", "two_level"), sum(map(len, nodes))
    proof = check(found, size, nodes=nodes, leaders=leaders)
    assert (proof.rounds, proof.sent_max) == found.cost(size, nodes=nodes, leaders=leaders)


def test_only_leaders_talk_to_other_nodes():
    nodes = ((0, 3, 5), (1, 2), (4, 6, 7))
    home = {rank: node for node, ranks in enumerate(nodes) for rank in ranks}
    found = schedule("two_level", 8, nodes=nodes)
    abroad = [
        {move.peer for step in found.steps(rank) for move in step if home[move.peer] != home[rank]}
        for rank in range(8)
    ]
    assert [bool(peers) for peers in abroad] == [rank not in {5, 7} for rank in range(8)]


def test_two_level_refuses():
    found = find("allreduce", "two_level")
    nodes = ((0, 1, 2), (3, 4))
    with pytest.raises(ValueError, match="3 leaders a node, expected 1 to 2, the smallest node"):
        found.schedule(5, nodes=nodes, leaders=3)
    with pytest.raises(ValueError, match="bruck_gather uses scratch, so it needs 1 leader a node, given 2"):
        found.schedule(5, nodes=nodes, inter="bruck_gather")
    with pytest.raises(ValueError, match="unknown algorithm 'rings'"):
        found.schedule(5, nodes=nodes, inter="rings")
    with pytest.raises(ValueError, match="missing a required argument: 'chunks'"):
        found.schedule(5, nodes=nodes, inter="binary_tree")
