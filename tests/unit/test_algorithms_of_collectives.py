"""What the algorithms of single collectives do beyond what all have in common."""

from fractions import Fraction
from itertools import accumulate, pairwise

import numpy as np
import pytest
from collective_results import compared
from collective_results import given as given_values
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule_interpreter import run

import mpicoll.algorithms  # noqa: F401, registers them
from mpicoll.algorithms.circulant import first_chunks, skips_to
from mpicoll.schedule import Schedule, algorithms, find
from mpicoll.schedule.proof import prove

BLOCKS = ["allgather", "alltoall", "gather", "reduce_scatter", "scatter"]


@pytest.mark.parametrize(
    ("collective", "name", "parameters", "expression"),
    [
        ("reduce", "binomial", {}, "(((0+1)+(2+3))+(4+5))"),
        ("reduce", "binomial", {"root": 4}, "(((0+1)+(2+3))+(4+5))"),
        ("reduce", "binary_tree", {"chunks": 2, "root": 2}, "(((0+1)+2)+((3+4)+5))"),
        ("reduce", "halving_gather", {}, "(((0+3)+(2+5))+(1+4))"),
        ("reduce_scatter", "direct", {}, "(((((0+1)+2)+3)+4)+5)"),
        ("reduce_scatter", "ring", {}, "(0+((((1+2)+3)+4)+5))"),
        ("reduce_scatter", "pairwise", {}, "(((((0+5)+4)+3)+2)+1)"),
        ("scan", "chain", {"chunks": 2}, "0"),
        ("bcast", "chain", {"chunks": 2, "root": 3}, "3"),
        ("barrier", "dissemination", {}, "0|1|2|3|4|5"),
    ],
)
def test_how_the_first_result_is_computed(collective, name, parameters, expression):
    assert prove(find(collective, name).schedule(6, **parameters)).expression == expression


def test_how_prefixes_are_computed():
    def expressions(collective, name, **parameters):
        return sorted(prove(find(collective, name).schedule(5, **parameters)).expressions, key=len)

    chain = ["0", "(0+1)", "((0+1)+2)", "(((0+1)+2)+3)", "((((0+1)+2)+3)+4)"]
    assert expressions("scan", "chain", chunks=2) == chain
    assert expressions("exscan", "chain", chunks=2) == chain[:-1]
    doubling = ["0", "(0+1)", "(0+(1+2))", "((0+1)+(2+3))", "(0+((1+2)+(3+4)))"]
    assert expressions("scan", "recursive_doubling") == doubling
    assert expressions("exscan", "recursive_doubling") == doubling[:-1]


@pytest.mark.parametrize("size", [1, 2, 3, 6, 7, 8, 12, 17])
@pytest.mark.parametrize("name", ["binomial", "binary_tree"])
def test_a_reduction_in_rank_order_to_every_root(name, size):
    found = find("reduce", name)
    for root in range(size):
        proof = prove(found.schedule(size, root=root, **{"chunks": 3} if found.pipelined else {}))
        assert proof.rank_order
        assert proof.uniform
        if name == "binomial":  # the same bits wherever the root is
            assert proof.expressions == prove(found.schedule(size)).expressions


@pytest.mark.parametrize("size", range(1, 40))
def test_steps_and_bytes_that_are_the_least_possible(size):
    rounds = (size - 1).bit_length()
    once, least = min(1, size - 1), Fraction(size - 1, size)
    assert find("reduce", "binomial").cost(size) == (rounds, once)
    for collective in ("allgather", "reduce_scatter"):
        assert find(collective, "circulant").cost(size) == (rounds, least)
        assert find(collective, "ring").cost(size)[1] == least
    for collective in ("bcast", "reduce"):
        for chunks in (1, 4):
            steps = find(collective, "circulant").cost(size, chunks=chunks)[0]
            assert steps == (chunks - 1 + rounds if size > 1 else 0)
    for name in ("pairwise", "direct"):
        assert find("alltoall", name).cost(size)[1] == least
    for collective in ("barrier", "scan"):
        name = {"barrier": "dissemination", "scan": "recursive_doubling"}[collective]
        assert find(collective, name).cost(size)[0] == rounds


@pytest.mark.parametrize(
    ("size", "radix", "steps"), [(16, 2, 4), (16, 4, 2), (17, 4, 3), (9, 3, 2), (7, 7, 1)]
)
def test_an_all_to_all_sends_a_message_for_each_digit(size, radix, steps):
    schedule = find("alltoall", "bruck").schedule(size, radix=radix)
    for rank in range(size):
        sends = [[move for move in step if move.kind == "send"] for step in schedule.steps(rank)]
        assert len(sends) == steps
        assert all(len(step) <= radix - 1 for step in sends)


def test_an_all_to_all_of_the_largest_radix_is_direct():
    direct, bruck = (find("alltoall", name) for name in ("direct", "bruck"))
    for rank in range(5):
        ours, theirs = (
            {move for step in schedule.steps(rank) for move in step}
            for schedule in (direct.schedule(5), bruck.schedule(5, radix=5))
        )
        assert ours == theirs


@pytest.mark.parametrize("size", [*range(2, 100), 1023, 1025, 2187])
def test_a_rank_gets_a_new_chunk_over_each_skip_from_one_that_has_it(size):
    skips = skips_to(size)
    rounds = len(skips) - 1
    received = [first_chunks(place, skips) for place in range(size)]
    for place in range(1, size):
        fresh = [chunk for chunk in received[place] if chunk >= 0]
        (first,) = fresh
        assert sorted(received[place]) == sorted({*range(-rounds, 0), first} - {first - rounds})
        for k, skip in enumerate(skips[:-1]):
            there = (place + skip) % size
            if there != 0:
                assert received[there][k] in {first - rounds, *received[place][:k]}
    assert [received[skip % size][k] for k, skip in enumerate(skips[:-1]) if skip < size] == list(
        range(rounds)
    )


@st.composite
def drawn_blocks(draw):
    """Draw an algorithm that moves blocks, and a length for each of its chunks, many of them 0."""
    collective = draw(st.sampled_from(BLOCKS))
    size = draw(st.integers(1, 9))
    found = draw(st.sampled_from([found for found in algorithms(collective) if found.serves(size)]))
    parameters = {name: draw(st.sampled_from(values)) for name, values in found.variants.items()}
    if found.rooted:
        parameters["root"] = draw(st.integers(0, size - 1))
    schedule = found.schedule(size, **parameters)
    lengths = st.lists(st.sampled_from([0, 0, 1, 2, 7]), min_size=schedule.chunks, max_size=schedule.chunks)
    return schedule, draw(lengths)


@given(drawn_blocks())
@settings(deadline=None)
def test_blocks_of_any_lengths_where_empty_ones_move_nothing(drawn):
    schedule, lengths = drawn

    def without_empty(move):
        runs = [(c, c + 1) for start, stop in move.chunks for c in range(start, stop) if lengths[c]]
        return [move._replace(chunks=[range(*run) for run in runs])] if runs else []

    def generate(rank):
        for step in schedule.steps(rank):
            yield tuple(left for move in step for left in without_empty(move))

    thinned = Schedule(
        schedule.collective, schedule.name, schedule.size, schedule.chunks, generate, root=schedule.root
    )
    random = np.random.default_rng(sum(lengths))
    data = [[random.integers(0, 1000, length) for length in lengths] for _ in range(schedule.size)]
    values = run(thinned, given_values(thinned, data), np.add)
    for _, chunk, value, due in compared(thinned, values, data, np.add):
        if lengths[chunk]:
            np.testing.assert_array_equal(value, due)


# how many chunks


@pytest.mark.parametrize("ratio", [0.0, 0.5, 3, 1e2, 1e4])
@pytest.mark.parametrize("size", [1, 2, 3, 8, 33])
@pytest.mark.parametrize("key", [("bcast", "chain"), ("bcast", "circulant"), ("reduce", "binary_tree")])
def test_the_best_number_of_chunks(key, size, ratio):
    found = find(*key)
    times = [float(found.cost(size, chunks=c)[0]) * (1 + ratio / c) for c in range(1, 700)]
    best = found.best_chunks(size, ratio)
    assert times[best - 1] == min(times)
    if key == ("bcast", "chain") and size > 2:
        assert abs(best - ((size - 2) * ratio) ** 0.5) <= 1


@pytest.mark.parametrize("size", [2, 3, 8, 33])
def test_the_best_number_of_chunks_where_two_trees_have_half_each(size):
    found = find("allreduce", "double_binary_tree")
    times = [float(found.cost(size, chunks=c)[0]) * (1 + 1e4 / c) for c in range(1, 700)]
    assert abs(found.best_chunks(size, 1e4) - (1 + times.index(min(times)))) <= 2


def test_more_chunks_for_longer_vectors():
    for found in algorithms():
        if found.pipelined:
            best = [found.best_chunks(20, 4.0**power) for power in range(8)]
            assert all(few <= many for few, many in pairwise(best))
            assert best[-1] > 4 * best[3] > 0
            assert best == list(accumulate(best, max))
