"""What ranks must find is what NumPy finds when it does to their buffers what the MPI standard says."""

import numpy as np
import pytest

from mpicoll.bench import data
from mpicoll.bench.cases import Case, fill
from mpicoll.bench.forms import FORMS
from mpicoll.bench.words import OPS

INT32 = np.dtype("int32")
BLOCKS = [1, 5, data.PERIOD + 1000]  # elements: shorter than a period, and longer

CASES = [
    (name, size, root, in_place)
    for name, form in FORMS.items()
    if form.vector
    for size in (1, 2, 3, 4)
    for root in (range(size) if form.rooted else [0])
    for in_place in ([False, True] if form.in_place else [False])
]


def buffers(collective, size, block, *, dtype=INT32, root=0, in_place=False, op="SUM"):
    """Return all ranks' cases, what each of them gives, and its receive buffer, ready for the call."""
    form = FORMS[collective]
    count = block * form.blocks(size)
    op = op if form.combines else ""
    cases = [Case(collective, rank, size, count, dtype, op, root, in_place) for rank in range(size)]
    sent = [np.empty(case.sent, dtype) for case in cases]
    received = [np.empty(case.received, dtype) for case in cases]
    for case, send, recv in zip(cases, sent, received, strict=True):
        fill(send, case.given)
        case.reset(recv)
    given = [_given(*each).copy() for each in zip(cases, sent, received, strict=True)]
    return cases, given, received


def _given(case, send, recv):
    """Return what the MPI library reads as a rank's vector, or as its own block."""
    if case.collective == "bcast":
        return recv
    if not case.inside or case.collective == "scatter":
        return send
    return np.split(recv, case.size)[case.rank] if case.collective in ("allgather", "gather") else recv


def call(collective, cases, given, received):
    """Do what the collective does."""
    size, root = len(cases), cases[0].root

    def combined(ranks):
        result = given[0]
        for vector in given[1:ranks]:
            result = getattr(np, OPS[cases[0].op][0])(result, vector).astype(result.dtype)
        return result

    for case, recv in zip(cases, received, strict=True):
        rank = case.rank
        match collective:
            case "allgather":
                recv[:] = np.concatenate(given)
            case "allreduce":
                recv[:] = combined(size)
            case "alltoall":
                recv[:] = np.concatenate([np.split(vector, size)[rank] for vector in given])
            case "bcast":
                recv[:] = given[root]
            case "exscan" if rank > 0:
                recv[:] = combined(rank)
            case "gather" if rank == root:
                recv[:] = np.concatenate(given)
            case "reduce" if rank == root:
                recv[:] = combined(size)
            case "reduce_scatter":
                recv[: case.block] = np.split(combined(size), size)[rank]
            case "scan":
                recv[:] = combined(rank + 1)
            case "scatter" if not case.inside:
                recv[:] = np.split(given[root], size)[rank]


def wrong(cases, received):
    return [case.count_wrong(recv) for case, recv in zip(cases, received, strict=True)]


@pytest.mark.parametrize(("collective", "size", "root", "in_place"), CASES)
@pytest.mark.parametrize("block", BLOCKS)
def test_what_ranks_must_find(collective, size, root, in_place, block):
    cases, given, received = buffers(collective, size, block, root=root, in_place=in_place)
    call(collective, cases, given, received)
    assert wrong(cases, received) == [0] * size
    if collective == "reduce_scatter":  # in place, MPI says nothing of the rest
        received = [recv[:block] for recv in received]
    for recv in received:
        recv.view(np.uint8)[[0, -1]] ^= 1
    assert wrong(cases, received) == [min(2, len(recv)) for recv in received]


@pytest.mark.parametrize(
    ("name", "op"), [("float64", "SUM"), ("complex64", "PROD"), ("uint8", "LXOR"), ("bfloat16", "MAX")]
)
@pytest.mark.parametrize("collective", [name for name, form in FORMS.items() if form.vector])
def test_types_and_ops(collective, name, op):
    cases, given, received = buffers(collective, 4, 50, dtype=data.find_dtype(name), root=1, op=op)
    call(collective, cases, given, received)
    assert wrong(cases, received) == [0] * 4


@pytest.mark.parametrize(("collective", "size", "root", "in_place"), [case for case in CASES if case[1] == 3])
def test_a_call_that_does_nothing_is_wrong_wherever_there_is_a_result(collective, size, root, in_place):
    cases, _, received = buffers(collective, size, 100, root=root, in_place=in_place)
    found = wrong(cases, received)
    for case, count in zip(cases, found, strict=True):
        keeps = case.expected is None or (collective == "bcast" and case.at_root)
        keeps |= collective == "scan" and case.rank == 0 and in_place
        assert (count > 90) != keeps
        assert count == 0 or not keeps


@pytest.mark.parametrize("block", BLOCKS[1:])
@pytest.mark.parametrize("collective", ["allgather", "alltoall", "gather"])
def test_blocks_in_each_others_places_are_wrong(collective, block):
    cases, given, received = buffers(collective, 3, block)
    call(collective, cases, given, received)
    for recv in received:
        blocks = recv.reshape(3, -1)
        blocks[[1, 2]] = blocks[[2, 1]]
    assert wrong(cases, received)[0] > 1.9 * block


@pytest.mark.parametrize("block", BLOCKS[1:])
@pytest.mark.parametrize("collective", ["scatter", "reduce_scatter"])
def test_another_ranks_block_is_wrong(collective, block):
    cases, given, received = buffers(collective, 3, block)
    call(collective, cases, given, received)
    assert min(wrong(cases, received[1:] + received[:1])) > 0.9 * block


@pytest.mark.parametrize("collective", ["gather", "reduce"])
def test_what_is_written_where_there_is_no_result_is_wrong(collective):
    cases, given, received = buffers(collective, 3, 10, root=1)
    call(collective, cases, given, received)
    received[0][:] = received[1]
    assert wrong(cases, received) == [len(received[0]), 0, 0]


@pytest.mark.parametrize("collective", FORMS)
def test_a_pattern_is_no_longer_than_its_buffer_nor_than_a_period_for_each_block(collective):
    for block in BLOCKS:
        for case in buffers(collective, 3, block)[0]:
            if case.expected is not None:
                assert case.expected.size <= min(case.received, data.PERIOD * len(case.expected))


def test_a_barrier_has_empty_buffers():
    case = Case("barrier", 1, 3, 0, INT32, "")
    recv = np.empty(case.received, INT32)
    case.reset(recv)
    assert (case.sent, case.received, case.count_wrong(recv)) == (0, 0, 0)
