"""Every registered algorithm: proved at many sizes, and what its file says of it."""

import inspect
import sys
import textwrap
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mpicoll.algorithms  # noqa: F401, registers them
from mpicoll.algorithms import tree
from mpicoll.schedule import algorithms, find, registry
from mpicoll.schedule.drawing import table
from mpicoll.schedule.moves import slots
from mpicoll.schedule.proof import ProofError, check, placements, prove, verify
from mpicoll.schedule.schedule import moves_of

ALL = algorithms()
FAMILIES = {
    "allgather": {
        "ring",
        "bruck",
        "recursive_doubling",
        "neighbour_exchange",
        "circulant",
        "direct",
        "two_level",
    },
    "allreduce": {
        "ring",
        "bidirectional_ring",
        "bruck",
        "bruck_gather",
        "circulant",
        "direct",
        "direct_gather",
        "recursive_doubling",
        "recursive_halving_doubling",
        "star",
        "binary_tree",
        "double_binary_tree",
        "two_level",
    },
    "alltoall": {"pairwise", "bruck", "direct"},
    "barrier": {"dissemination", "two_level"},
    "bcast": {"binomial", "chain", "scatter_ring", "scatter_doubling", "circulant", "two_level"},
    "exscan": {"recursive_doubling", "chain"},
    "gather": {"binomial", "linear"},
    "reduce": {"binomial", "binary_tree", "halving_gather", "circulant", "two_level"},
    "reduce_scatter": {"ring", "recursive_halving", "pairwise", "circulant", "direct"},
    "scan": {"recursive_doubling", "chain"},
    "scatter": {"binomial", "linear"},
}
# of the collectives with an op
REDUCING = {"allreduce", "exscan", "reduce", "reduce_scatter", "scan"}
IN_RANK_ORDER = {
    "allreduce": {
        "binary_tree",
        "bruck_gather",
        "direct",
        "direct_gather",
        "double_binary_tree",
        "recursive_doubling",
        "recursive_halving_doubling",
        "star",
    },
    "exscan": {"recursive_doubling", "chain"},
    "reduce": {"binomial", "binary_tree"},
    "reduce_scatter": {"direct"},
    "scan": {"recursive_doubling", "chain"},
}
# where one expression computes every chunk, at every size
UNIFORM = IN_RANK_ORDER["allreduce"] - {"direct", "double_binary_tree"}
TRANSIT = {("gather", "binomial"), ("scatter", "binomial"), ("alltoall", "bruck")}

every_algorithm = pytest.mark.parametrize("found", ALL, ids=lambda found: f"{found.collective}-{found.name}")


def bound(found, size, **parameters):
    """Give the schedule with the first value of each parameter that is not given, and an inner root."""
    own = {key: values[0] for key, values in found.variants.items()}
    root = {"root": size // 2} if found.rooted else {}
    return found.schedule(size, **own | root | parameters)


def schedule(name, size, collective="allreduce", **parameters):
    return bound(find(collective, name), size, **parameters)


def test_the_families():
    assert {(found.collective, found.name) for found in ALL} == {
        (collective, name) for collective, names in FAMILIES.items() for name in names
    }
    for collective, names in IN_RANK_ORDER.items():
        assert {found.name for found in algorithms(collective) if not found.commutative} == names
    assert {found.collective for found in ALL if found.commutative} <= REDUCING
    for size in range(1, 40):
        left_out = {found.name for found in ALL if not found.serves(size)}
        assert left_out == ({"neighbour_exchange"} if size % 2 and size > 1 else set())


@every_algorithm
def test_proved_for_1_to_33_ranks(found):
    verdicts = list(verify(range(1, 34), found.collective, [found.name]))
    assert not [(v.size, v.parameters, v.message) for v in verdicts if not v.ok]
    assert len(verdicts) >= 17
    transit = any(v.proof.transit for v in verdicts)
    assert transit == found.transit == ((found.collective, found.name) in TRANSIT)


@every_algorithm
@pytest.mark.parametrize("size", [64, 100, 128])
def test_proved_for_many_ranks(found, size):
    if found.collective == "alltoall" and size == 128:
        pytest.skip("128**3 chunks take long")
    parameters = {key: values[-1] for key, values in found.variants.items()}
    where = placements(size)
    chosen = ["8 ranks a node" if size % 8 == 0 else "8 ranks a node, the last one smaller", "random"]
    for nodes in [where[name] for name in chosen] if found.two_level else [None]:
        for root in [{"root": 0}, {"root": size // 3}] if found.rooted else [{}]:
            proof = check(found, size, nodes=nodes, **parameters, **root)
            if found.collective == "allreduce" and found.name in UNIFORM:
                assert proof.uniform


@every_algorithm
def test_the_table_in_the_file_is_of_this_schedule(found):
    parameters = {"root": 0} if found.rooted else {}
    if found.two_level:
        parameters["nodes"] = ((0, 1), (2, 3))
    elif found.pipelined:
        parameters["chunks"] = 2
    text = sys.modules[found.function.__module__].__doc__
    rows = table(bound(found, 4, **parameters))
    if textwrap.indent(rows, "    ") + "\n" not in text:
        # or it is half of the all-reduce's table, where its steps have other numbers
        body = [row[6:].split() for row in rows.splitlines()[1:]]
        lines = [line[10:].split() for line in text.splitlines()]
        halves = [lines[at : at + len(body)] for at in range(len(lines))]
        assert found.collective in {"reduce_scatter", "allgather"}
        assert body in halves


@every_algorithm
def test_the_file_says_what_a_reader_wants_to_know(found):
    text = inspect.getdoc(sys.modules[found.function.__module__])
    parts = ["Cost", "alpha", "Limits:", "Source:"]
    parts += ["beta"] if found.collective != "barrier" else []
    parts += ["gamma"] if found.collective in REDUCING else []
    for part in parts:
        assert part in text
    assert found.summary.endswith(".")


@pytest.mark.parametrize("name", IN_RANK_ORDER["allreduce"])
@pytest.mark.parametrize("size", [3, 6, 16])
def test_whether_chunks_are_computed_alike(name, size):
    assert prove(schedule(name, size, **{"chunks": 4} if "tree" in name else {})).uniform == (name in UNIFORM)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 6, 7, 8, 24, 33])
def test_algorithms_with_the_same_bits(size):
    def expressions(name, **parameters):
        return prove(schedule(name, size, **parameters)).expressions

    assert expressions("direct_gather") == expressions("star")
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
        ("direct_gather", {}, "(((((0+1)+2)+3)+4)+5)"),
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


@every_algorithm
def test_a_single_rank_has_no_moves(found):
    assert not any(bound(found, 1).steps(0))


@every_algorithm
@pytest.mark.parametrize("size", [2, 3, 8, 13])
def test_no_more_than_a_vector_is_on_its_way_to_a_rank_that_combines_it(found, size):
    if not found.serves(size):
        pytest.skip(f"needs {found.ranks}")
    # with a single chunk, a rank of a tree that has two children gets two
    chosen = bound(found, size, **{"chunks": 2} if found.pipelined else {})
    for rank in range(size):
        for step in chosen.steps(rank):
            combined = sum(len(list(slots(move.chunks))) for move in step if move.kind == "reduce")
            assert combined <= chosen.chunks


@every_algorithm
def test_messages_are_one_or_two_runs(found):
    for size in filter(found.serves, (5, 8, 13)):
        for nodes in placements(size).values() if found.two_level else [None]:
            chosen = bound(found, size, **{"nodes": nodes} if nodes else {})
            moves = [move for rank in range(size) for step in chosen.steps(rank) for move in step]
            most = 1 if found.two_level else 2
            if (found.collective, found.name) == ("alltoall", "bruck"):
                most = size // 2 + 1  # chunks that go equally far are not neighbours
            if (found.collective, found.name) == ("allgather", "two_level"):
                most = size  # nor are those of a node
            assert max(len(move.chunks) for move in moves) <= most


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_a_rank_that_gathers_directly_combines_in_one_step_and_copies_once(size):
    for rank in range(size):
        (step,) = schedule("direct_gather", size).steps(rank)
        kinds = [move.kind for move in step if move.source is not None]
        assert kinds == ["combine"] * (size - 1) + ["copy"] * (rank > 0)


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
    for found in ALL:
        if found.pipelined:
            check(found, size, chunks=chunks, **{"root": chunks % size} if found.rooted else {})


@given(st.integers(1, 32), st.integers(2, 35))
@settings(deadline=None, max_examples=50)
def test_any_radix(size, radix):
    for found in ALL:
        if "radix" in found.variants:
            check(found, size, radix=radix)


@pytest.mark.parametrize("collective", ["allreduce", "allgather", "alltoall"])
def test_a_radix_of_one_gets_nowhere(collective):
    with pytest.raises(ValueError, match="radix 1, expected at least 2"):
        list(schedule("bruck", 4, collective, radix=1).steps(0))


# two levels


TWO_LEVEL = [found for found in ALL if found.name == "two_level"]
UNEVEN = ((0, 3, 5), (1, 2), (4, 6, 7))
every_two_level = pytest.mark.parametrize("found", TWO_LEVEL, ids=lambda found: found.collective)


@st.composite
def drawn_nodes(draw):
    """Draw any placement of up to 17 ranks: any rank on any node, nodes in any order."""
    node_of = draw(st.lists(st.integers(0, 5), min_size=1, max_size=17))
    nodes = [tuple(r for r, n in enumerate(node_of) if n == node) for node in set(node_of)]
    return tuple(draw(st.permutations(nodes)))


@st.composite
def drawn_two_levels(draw, collective):
    """Draw a placement, and parameters for any flat algorithm between nodes."""
    nodes = draw(drawn_nodes())
    size, fewest = sum(map(len, nodes)), min(map(len, nodes))
    found = find(collective, "two_level")
    flat = draw(
        st.sampled_from([a for a in algorithms(collective) if not a.two_level and a.serves(len(nodes))])
    )
    parameters = {key: draw(st.sampled_from(values)) for key, values in flat.variants.items()}
    parameters |= {"nodes": nodes, "inter": flat.name}
    if found.rooted:
        parameters["root"] = draw(st.integers(0, size - 1))
    if "leaders" in found.variants:
        scratch = flat.schedule(len(nodes), **{key: parameters[key] for key in flat.variants}).vectors
        parameters["leaders"] = 1 if scratch else draw(st.none() | st.integers(1, fewest))
    return size, flat, parameters


@every_two_level
@given(data=st.data())
@settings(deadline=None)
def test_any_flat_algorithm_on_any_placement(found, data):
    size, flat, parameters = data.draw(drawn_two_levels(found.collective))
    proof = check(found, size, **parameters)
    nodes = parameters["nodes"]
    in_order = [rank for node in nodes for rank in node] == list(range(size))
    if found.collective == "allreduce" and in_order and not flat.commutative:
        assert proof.rank_order


@given(drawn_nodes(), st.data())
@settings(deadline=None)
def test_the_registered_cost_is_exact_with_the_ring(nodes, data):
    leaders = data.draw(st.none() | st.integers(1, min(map(len, nodes))))
    found, size = find("allreduce", "two_level"), sum(map(len, nodes))
    proof = check(found, size, nodes=nodes, leaders=leaders)
    assert (proof.rounds, proof.sent_max) == found.cost(size, nodes=nodes, leaders=leaders)


@given(drawn_nodes())
@settings(deadline=None)
def test_the_registered_cost_of_a_barrier_is_exact(nodes):
    found, size = find("barrier", "two_level"), sum(map(len, nodes))
    proof = check(found, size, nodes=nodes)
    assert (proof.rounds, proof.sent_max) == found.cost(size, nodes=nodes)


@pytest.mark.parametrize("nodes", [3, 4])
@pytest.mark.parametrize("length", [1, 2, 4])
@every_two_level
def test_the_registered_cost_is_exact_on_even_nodes(found, length, nodes):
    size = nodes * length
    where = tuple(tuple(range(first, size, nodes)) for first in range(nodes))
    for leaders in (None, 1) if "leaders" in found.variants else (None,):
        own = {"nodes": where} | ({"leaders": leaders} if leaders else {})
        proof = check(found, size, **own)
        steps, sent = found.cost(size, **own)
        assert proof.rounds == steps
        if found.collective == "reduce" and leaders is None and length > 1:
            assert proof.sent_max == 1  # a binomial tree's root sends nothing, and so its part to the root
        else:
            assert proof.sent_max == sent


def test_the_cost_between_nodes_is_that_for_the_root_s_node():
    nodes = tuple((rank,) for rank in (4, 5, 6, 0, 1, 2, 3))
    found, tree = find("reduce", "two_level"), find("reduce", "binary_tree")
    for root, number in ((0, 3), (4, 0)):
        cost = found.cost(7, nodes=nodes, root=root, inter="binary_tree", chunks=2)
        assert cost == tree.cost(7, root=number, chunks=2)
    assert tree.cost(7, root=3, chunks=2) < tree.cost(7, root=0, chunks=2)


def between_nodes(chosen, nodes):
    """Give (source, target, chunks) of all messages from one node to another."""
    home = {rank: node for node, ranks in enumerate(nodes) for rank in ranks}
    return [
        (rank, move.peer, len(list(slots(move.chunks))))
        for rank in range(chosen.size)
        for step in chosen.steps(rank)
        for move in step
        if move.kind == "send" and home[move.peer] != home[rank]
    ]


def test_only_leaders_talk_to_other_nodes():
    talking = {
        rank for *pair, _ in between_nodes(schedule("two_level", 8, nodes=UNEVEN), UNEVEN) for rank in pair
    }
    assert talking == {0, 3, 1, 2, 4, 6}


@pytest.mark.parametrize("root", range(8))
def test_the_root_leads_its_node(root):
    led = [root if root in node else node[0] for node in UNEVEN]
    for collective in ("bcast", "reduce"):
        leaders = {"leaders": 1} if collective == "reduce" else {}
        chosen = schedule("two_level", 8, collective, nodes=UNEVEN, root=root, **leaders)
        messages = between_nodes(chosen, UNEVEN)
        assert {rank for *pair, _ in messages for rank in pair} == set(led)
        # into each other node, or out of it, the vector goes once
        assert len(messages) == 2
        ends = [pair[1 if collective == "bcast" else 0] for pair in messages]
        assert sorted([root, *ends]) == sorted(led)


def test_a_root_that_leads_gets_all_from_one_leader_without_another_step():
    proof = prove(schedule("two_level", 8, "reduce", nodes=UNEVEN, root=7, leaders=1))
    assert proof.rounds == 2 + 2
    assert prove(schedule("two_level", 8, "reduce", nodes=UNEVEN, root=7)).rounds == 2 + 2 + 1


def test_every_chunk_comes_to_every_node_once():
    messages = between_nodes(schedule("two_level", 8, "allgather", nodes=UNEVEN), UNEVEN)
    assert len(messages) == 3 * 2
    assert sum(chunks for *_, chunks in messages) == 8 * 2
    assert {rank for *pair, _ in messages for rank in pair} == {node[0] for node in UNEVEN}


@pytest.mark.parametrize(
    ("collective", "name", "message"),
    [
        ("allreduce", "direct_gather", "reads a value that nobody has written"),
        ("bcast", "two_level", "rank 7 ends with contributions none in chunk 0; missing 4"),
        ("reduce", "two_level", "rank 4 ends with contributions .* missing 7"),
        ("allgather", "two_level", "chunk 7 from rank 4 reads a value that nobody has written"),
        ("barrier", "two_level", "rank 0 ends with contributions .* missing 7"),
    ],
)
def test_a_schedule_in_which_nobody_minds_rank_7_is_refused(collective, name, message):
    right = schedule(name, 8, collective, nodes=UNEVEN)
    prove(right)

    def without(rank):
        return [tuple(m for m in moves_of(step) if 7 not in (rank, m.peer)) for step in right.generate(rank)]

    with pytest.raises(ProofError, match=message):
        prove(replace(right, generate=without))


@pytest.mark.parametrize(
    ("collective", "parameters", "message"),
    [
        ("allreduce", {"leaders": 3}, "3 leaders a node, expected 1 to 2, the smallest node"),
        ("reduce", {"leaders": 0}, "0 leaders a node, expected 1 to 2, the smallest node"),
        (
            "allreduce",
            {"inter": "bruck_gather"},
            "bruck_gather uses scratch, so it needs 1 leader a node, given 2",
        ),
        ("allreduce", {"inter": "rings"}, "unknown algorithm 'rings'"),
        ("bcast", {"inter": "ring"}, "unknown algorithm 'ring'"),
        ("allreduce", {"inter": "binary_tree"}, "missing a required argument: 'chunks'"),
        ("bcast", {"inter": "chain"}, "missing a required argument: 'chunks'"),
        ("bcast", {"leaders": 2}, "unexpected keyword argument 'leaders'"),
        ("barrier", {"chunks": 2}, "unexpected keyword argument 'chunks'"),
        ("allgather", {"inter": "neighbour_exchange", "nodes": UNEVEN}, "p % 2 == 0, given p = 3"),
    ],
)
def test_two_level_refuses(collective, parameters, message):
    nodes = parameters.get("nodes", ((0, 1, 2), (3, 4)))
    with pytest.raises(ValueError, match=message):
        find(collective, "two_level").schedule(sum(map(len, nodes)), **{"nodes": nodes} | parameters)


@pytest.mark.parametrize("change", [{"chunks": lambda size: 2 * size}, {"vectors": 1}])
def test_only_whole_chunks_are_gathered_between_nodes(monkeypatch, change):
    own = replace(find("allgather", "ring"), name="own", **change)
    monkeypatch.setitem(registry._REGISTRY, ("allgather", "own"), own)
    with pytest.raises(ValueError, match="own uses scratch or cuts a rank's chunk, expected neither"):
        find("allgather", "two_level").schedule(4, nodes=((0, 1), (2, 3)), inter="own")
