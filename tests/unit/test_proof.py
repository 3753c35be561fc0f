"""The proof: what it accepts, what it refuses and how it says so, and that it states the truth."""

from fractions import Fraction
from functools import partial

import numpy as np
import pytest
from collective_results import compared
from collective_results import given as given_values
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule_interpreter import run

import mpicoll.algorithms  # noqa: F401, registers them
from mpicoll.schedule import (
    Schedule,
    algorithm,
    algorithms,
    combine,
    copy,
    find,
    mapped,
    recv,
    reduce,
    scratch,
    send,
)
from mpicoll.schedule.collectives import COLLECTIVES
from mpicoll.schedule.proof import (
    ProofError,
    check,
    depends_on_placement,
    placements,
    prove,
    roots,
    verify,
)


def made(*ranks, chunks=1, vectors=0):
    """Give a schedule from the steps of each rank."""
    return Schedule("allreduce", "made", len(ranks), chunks, lambda rank: ranks[rank], vectors)


def exchange(peer):
    return send(peer, 0), reduce(peer, 0)


def refuses(schedule, *words):
    with pytest.raises(ProofError) as caught:
        prove(schedule)
    for word in ("made: ", *words):
        assert word in str(caught.value)


def test_an_exchange():
    proof = prove(made([exchange(1)], [exchange(0)]))
    assert proof.expression == "(0+1)"
    assert (proof.rank_order, proof.uniform, proof.rounds, proof.steps, proof.vectors) == (
        True,
        True,
        1,
        1,
        0,
    )
    assert (proof.sent_max, proof.sent_total, proof.reductions_max) == (1, 2, 1)


def test_one_rank_needs_no_step():
    proof = prove(made([], chunks=3))
    assert (proof.expression, proof.rounds, proof.sent_max, proof.rank_order) == ("0", 0, 0, True)


# 1. the postcondition, each contribution once


def test_a_missing_contribution():
    refuses(made([send(1, 0)], [reduce(0, 0)]), "rank 0", "contributions 0 in chunk 0", "missing 1")
    refuses(made([], [], []), "rank 0", "missing 1, 2")


def test_a_double_count_is_an_error_where_it_happens():
    steps = [exchange(1), exchange(1)], [exchange(0), exchange(0)]
    refuses(made(*steps), "in step 2: reduce of chunk 0 from rank", "twice: (0+1) with (0+1)")


def test_a_local_double_count():
    refuses(made([exchange(1), combine(0, 0)], [exchange(0)]), "rank 0 in step 2", "combine", "twice")


def test_reading_what_nobody_wrote():
    refuses(
        made([send(1, scratch(0))], [recv(0, 0)], vectors=1), "rank 1 in step 1: recv of chunk 0 from rank 0"
    )
    refuses(made([copy(0, scratch(0))], vectors=1), "rank 0 in step 1", "copy", "nobody has written")
    refuses(made([combine(scratch(0), 0)], vectors=1), "combine of chunk s0", "nobody has written")


def test_a_local_move_stays_within_its_chunk():
    refuses(made([copy(0, 1)], chunks=2), "rank 0 in step 1", "copy of chunks [1] to [0]")


# 2. the same bits on all ranks


def test_ranks_that_compute_differently_are_refused():
    shared = [send(1, 0), send(2, 0)], [send(0, 0), send(2, 0)], [send(0, 0), send(1, 0)]
    # every rank adds the others in turn, so that the sums are associated differently
    orders = [reduce(1, 0), reduce(2, 0)], [reduce(0, 0), reduce(2, 0)], [reduce(0, 0), reduce(1, 0)]
    steps = [[(*s, *o)] for s, o in zip(shared, orders, strict=True)]
    refuses(made(*steps), "rank 2 ends with chunk 0 computed as (1+(0+2)), rank 0 as ((0+1)+2)")


def test_swapped_operands_are_the_same_bits():
    # rank 1 combines by a local move, its own value first: 1+0, where rank 0 has 0+1
    steps = [exchange(1)], [(send(0, 0), recv(0, scratch(0)), combine(0, scratch(0)))]
    proof = prove(made(*steps, vectors=1))
    assert not proof.rank_order
    assert proof.vectors == 1


# 3. rank order, uniformity


def test_rank_order_is_of_the_leaves_not_of_the_tree():
    def gather(order):
        return made([tuple(reduce(r, 0) for r in order), tuple(send(r, 0) for r in order)],
                    *[[send(0, 0), recv(0, 0)] for _ in order])  # fmt: skip

    assert prove(gather([1, 2, 3])).rank_order
    assert not prove(gather([1, 3, 2])).rank_order


def test_uniform_compares_chunks_up_to_swapped_operands():
    steps = (
        [(reduce(1, 0), reduce(2, 0)), (send(1, 0), send(2, 0)), send(1, 1), recv(1, 1)],
        [(send(0, 0), reduce(2, 1)), recv(0, 0), reduce(0, 1), (send(0, 1), send(2, 1))],
        [(send(0, 0), send(1, 1)), recv(0, 0), recv(1, 1)],
    )
    proof = prove(made(*steps, chunks=2))
    assert not proof.uniform  # ((0+1)+2) and (0+(1+2))
    assert proof.expressions == {"((0+1)+2)", "(0+(1+2))"}
    assert prove(find("allreduce", "recursive_halving_doubling").schedule(6)).uniform


# 4. every send meets its receive


def test_a_deadlock_tells_who_waits_for_whom():
    steps = [[send((r + 1) % 3, 0), reduce((r - 1) % 3, 0)] for r in range(3)]
    refuses(
        made(*steps),
        "deadlock: rank 0 in step 1 waits to send chunk 0 to rank 1, "
        "rank 1 in step 1 waits to send chunk 0 to rank 2, "
        "rank 2 in step 1 waits to send chunk 0 to rank 0",
    )


def test_sends_are_synchronous():
    refuses(made([send(1, 0), reduce(1, 0)], [send(0, 0), reduce(0, 0)]), "deadlock")


def test_a_send_that_nobody_receives():
    refuses(made([send(1, 0)], []), "rank 0 in step 1 waits to send chunk 0 to rank 1, which is through")


def test_a_receive_that_nobody_sends():
    steps = [exchange(1), recv(1, 0)], [exchange(0)]
    refuses(made(*steps), "rank 0 in step 2 waits to receive chunk 0 from rank 1, which is through")


def test_the_cause_is_named_not_the_ring_behind_it():
    steps = [(recv(1, 0), recv(2, 0))], [recv(0, 0)], []
    refuses(made(*steps), "rank 0 in step 1 waits to receive chunk 0 from rank 2, which is through")


def test_both_sides_name_the_same_chunks():
    refuses(
        made([send(1, range(1, 3))], [(), reduce(0, range(2, 4))], chunks=4),
        "rank 0 in step 1 sends chunks 1-2 to rank 1, which in step 2 expects chunks 2-3",
    )


def test_both_sides_cut_into_the_same_messages():
    refuses(made([send(1, range(3, 5))], [reduce(0, [0, 3])], chunks=4), "sends chunk 3", "expects chunk 0")
    refuses(made([send(1, [0, 2])], [reduce(0, range(2))], chunks=4), "sends chunk 0", "expects chunks 0-1")


def test_scratch_matches_the_same_chunk_of_the_vector():
    steps = [(send(1, range(2)), recv(1, scratch(range(2, 4)))), combine(range(2), scratch(range(2, 4)))]
    other = [(send(0, range(2)), reduce(0, range(2)))]
    assert prove(made(steps, other, chunks=2, vectors=2)).vectors == 2
    shifted = [(send(1, range(2)), recv(1, scratch(range(1, 3))))]
    refuses(made(shifted, other, chunks=2, vectors=2), "expects chunks s1-2")


def test_a_malformed_move_is_a_proof_error():
    refuses(made([(), send(2, 0)], [recv(0, 0)]), "rank 0, step 2", "cannot send with rank 2")


# the semantics of a step


def test_a_step_sends_what_was_before_it():
    ring = [[(send((r + 1) % 3, 0), recv((r - 1) % 3, scratch(0)))] for r in range(3)]
    again = [[(send((r + 1) % 3, scratch(0)), recv((r - 1) % 3, scratch(0)))] for r in range(3)]
    for r in range(3):
        ring[r] += [copy(scratch(1), scratch(0)), *again[r]]
    values = run(made(*ring, vectors=2), [["0"], ["1"], ["2"]], None)
    assert values == [["0", "1", "2"], ["1", "2", "0"], ["2", "0", "1"]]


def test_receives_take_effect_as_written_then_local_moves():
    first = [(combine(0, scratch(0)), recv(1, scratch(0)), send(1, 0))]
    assert prove(made(first, [exchange(0)], vectors=1)).expression == "(0+1)"


def test_empty_ranges_move_nothing():
    steps = [(send(1, range(0)), *exchange(1))], [exchange(0)]
    assert prove(made(*steps)).rounds == 1


# 5. what it costs


def test_rounds_are_the_critical_path():
    # a chain up and down among 4 ranks; rank 0 also has steps that wait for nobody
    steps = (
        [(), send(1, 0), (), recv(1, 0)],
        [reduce(0, 0), send(2, 0), recv(2, 0), send(0, 0)],
        [reduce(1, 0), send(3, 0), recv(3, 0), send(1, 0)],
        [reduce(2, 0), send(2, 0)],
    )
    proof = prove(made(*steps))
    assert (proof.rounds, proof.steps, proof.sent_max, proof.sent_total) == (6, 4, 2, 6)


def test_shares_of_the_vector():
    proof = prove(find("allreduce", "ring").schedule(5))
    assert proof.sent_max == Fraction(8, 5)
    assert proof.sent_total == 8
    assert proof.reductions_max == Fraction(4, 5)


# check() and verify()


@pytest.fixture
def registry(monkeypatch):
    monkeypatch.setattr("mpicoll.schedule.registry._REGISTRY", {})


def star(rank, size, order=lambda peers: peers):
    peers = order(range(1, size))
    if rank == 0:
        yield from (reduce(peer, 0) for peer in peers)
        yield from (send(peer, 0) for peer in peers)
    else:
        yield send(0, 0)
        yield recv(0, 0)


def backwards_star(rank, size):
    return star(rank, size, order=lambda peers: peers[::-1])


def register(function, **fields):
    fields = {"chunks": 1, "steps": "2*(p-1)", "sent": "p-1", "source": "nobody"} | fields
    algorithm("allreduce", **fields)(function)
    return find("allreduce", function.__name__)


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize(
    ("function", "fields", "message"),
    [
        (star, {}, None),
        (star, {"steps": "<=2*p"}, None),
        (star, {"sent": "<=p"}, None),
        (star, {"steps": "2*p"}, r"steps registered as 2\*p = 8, found 6"),
        (star, {"steps": "<=p"}, "steps registered as <=p = 4, found 6"),
        (star, {"sent": "1"}, "sent registered as 1 = 1, found 3"),
        (star, {"vectors": 2}, "2 scratch vectors registered, 0 used"),
        (backwards_star, {"commutative": True}, None),
        (backwards_star, {}, r"do not commute, but computes \(\(\(0\+3\)\+2\)\+1\)"),
    ],
)
def test_check_compares_with_what_is_registered(function, fields, message):
    found = register(function, **fields)
    if message is None:
        assert check(found, 4).rounds == 6
    else:
        with pytest.raises(ProofError, match=message):
            check(found, 4)


@pytest.mark.usefixtures("registry")
def test_verify_goes_on_after_a_failure():
    register(star, sent="min(p-1, 2)", ranks="p != 2")
    verdicts = list(verify(range(1, 6)))
    assert [(v.size, v.ok) for v in verdicts] == [(1, True), (3, True), (4, False), (5, False)]
    assert "sent registered as" in verdicts[2].message
    assert verdicts[2].proof is None
    assert verdicts[1].proof.expression == "((0+1)+2)"


@pytest.mark.usefixtures("registry")
def test_verify_suspects_commutative_where_order_is_kept():
    register(star, commutative=True)
    *good, last = verify(range(1, 6))
    assert all(v.ok for v in good)
    assert not last.ok
    assert "rank order throughout" in last.message
    assert all(v.ok for v in verify([1, 2])), "two ranks cannot tell"


@pytest.mark.usefixtures("registry")
def test_verify_tries_all_variants():
    def varied(rank, size, chunks, radix=2):
        return star(rank, size)

    register(varied, chunks=None, variants={"chunks": (1,), "radix": (2, 3)})
    assert [v.parameters for v in verify([3])] == [{"chunks": 1, "radix": 2}, {"chunks": 1, "radix": 3}]


@pytest.mark.usefixtures("registry")
def test_verify_tries_roots():
    def rooted(rank, size, root=0):
        yield from (
            (send(peer, 0) for peer in range(size) if peer != root) if rank == root else [recv(root, 0)]
        )

    algorithm("bcast", chunks=1, steps="p-1", sent="p-1", source="nobody")(rooted)
    assert [v.parameters["root"] for v in verify([3])] == [0, 1, 2]
    assert [v.parameters["root"] for v in verify([20])] == roots(20) == [0, 1, 10, 19]
    assert all(v.ok for v in verify([1, 2, 3, 20]))


@pytest.mark.usefixtures("registry")
def test_check_tells_of_chunks_in_transit():
    def passed(rank, size):
        yield from ([recv(1, [1, 2])], [recv(2, 2), send(0, [1, 2])], [send(1, 2)])[rank]

    fields = {"chunks": 3, "steps": "2", "sent": "2/p", "source": "nobody"}
    algorithm("gather", **fields)(passed)
    with pytest.raises(ProofError, match="pass through ranks that neither begin nor end with them"):
        check(find("gather", "passed"), 3)
    algorithm("gather", transit=True, **fields)(passed)
    assert check(find("gather", "passed"), 3).transit


def test_verify_selects():
    assert {v.algorithm.name for v in verify([3], names=["ring", "star"])} == {"ring", "star"}
    assert {v.algorithm.collective for v in verify([3], names=["ring"])} > {"allgather", "allreduce"}
    assert {v.algorithm.collective for v in verify([3], collective="bcast")} == {"bcast"}


@given(st.integers(1, 40), st.integers(0, 3))
def test_placements_hold_every_rank_once(size, seed):
    found = placements(size, seed)
    assert found == placements(size, seed)
    assert len(set(found.values())) == len(found)
    for nodes in found.values():
        assert sorted(r for node in nodes for r in node) == list(range(size))
        assert all(nodes)


def test_dependence_on_the_placement():
    assert depends_on_placement(find("allreduce", "two_level"), 6)
    assert not depends_on_placement(find("allreduce", "circulant"), 6)


# the truth, by another interpreter with real values


@st.composite
def drawn_schedules(draw):
    """Draw an algorithm, a size, a root, its parameters and a placement."""
    collective = draw(st.sampled_from(list(COLLECTIVES)))
    size = draw(st.integers(1, 20))
    found = draw(st.sampled_from([found for found in algorithms(collective) if found.serves(size)]))
    parameters = {name: draw(st.sampled_from(values)) for name, values in found.variants.items()}
    if found.rooted:
        parameters["root"] = draw(st.integers(0, size - 1))
    nodes = draw(st.sampled_from(list(placements(size).values())))
    return found.schedule(size, nodes=nodes, **parameters)


def interpreted(schedule, data, op):
    """Run a schedule by the other interpreter; give (rank, chunk, what is there, what must be)."""
    return list(compared(schedule, run(schedule, given_values(schedule, data), op), data, op))


def merged(a, b):
    return "|".join(sorted({*a.split("|"), *b.split("|")}, key=int))


@given(drawn_schedules())
@settings(deadline=None)
def test_the_expression_is_what_is_computed(schedule):
    proof = prove(schedule)
    data = [[str(rank)] * schedule.chunks for rank in range(schedule.size)]
    idempotent = schedule.collective == "barrier"
    texts = [text for *_, text, _ in interpreted(schedule, data, merged if idempotent else "({}+{})".format)]
    assert texts[:1] == ([proof.expression] if proof.expression else [])
    joined = interpreted(schedule, data, merged if idempotent else "{} {}".format)
    assert all(text == due for *_, text, due in joined) == proof.rank_order


@given(drawn_schedules(), st.integers(0, 2**32))
@settings(deadline=None)
def test_results_are_right_and_the_same_bits_on_all_ranks(schedule, seed):
    size, proof = schedule.size, prove(schedule)
    random = np.random.default_rng(seed)
    data = random.uniform(-1, 1, (size, schedule.chunks, 8)) * 10.0 ** random.integers(-3, 4, (size, 1, 1))
    if proof.uniform:  # then equal elements give equal results wherever they are
        data[:] = data[:, :1]
    bits = {}
    for _, chunk, value, due in interpreted(
        schedule, data, np.maximum if schedule.collective == "barrier" else np.add
    ):
        np.testing.assert_allclose(value, due, atol=1e-9)
        same = due.tobytes(), None if proof.uniform else chunk
        assert bits.setdefault(same, value.tobytes()) == value.tobytes()


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize(("size", "length"), [(1, 1), (2, 1), (2, 3), (3, 2), (5, 1)])
def test_what_is_promised_is_what_mpi_says(collective, size, length):
    chunks = length * COLLECTIVES[collective].blocks(size)
    for root in range(size):
        schedule = Schedule(collective, "none", size, chunks, lambda rank: [], root=root)
        data = [[{rank}] * chunks for rank in range(size)]
        held = given_values(schedule, data)
        due = {(rank, chunk): wanted for rank, chunk, _, wanted in compared(schedule, held, data, set.union)}
        for place in (place for rank in range(size) for place in schedule.places(rank)):
            before, after = (promise(place) for promise in COLLECTIVES[collective][:2])
            at = place.rank, place.chunk
            assert (None if before is None else {before}) == held[place.rank][place.chunk]
            assert (None if after is None else {n for n in range(size) if after >> n & 1}) == due.get(at)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_doing_nothing_is_enough_for_one_rank_only(collective):
    for size in (1, 2):
        schedule = Schedule(collective, "idle", size, 4, lambda rank: [])
        if size == 1:
            assert prove(schedule).rounds == 0
        else:
            with pytest.raises(ProofError, match="ends with contributions"):
                prove(schedule)


def test_blocks_of_several_chunks():
    found = find("allgather", "ring").schedule(3)
    wide = partial(mapped, chunks=[range(0, 2), range(2, 4), range(4, 6)])
    proof = prove(Schedule("allgather", "wide", 3, 6, lambda rank: wide(found.generate(rank))))
    assert (proof.rounds, proof.sent_max) == (2, Fraction(2, 3))
    with pytest.raises(ProofError, match="narrow: 4 chunks, expected a multiple of 3"):
        prove(Schedule("allgather", "narrow", 3, 4, found.generate))


def test_what_is_sent_in_an_all_to_all_is_counted_in_one_rank_s_vectors():
    proof = prove(find("alltoall", "direct").schedule(4))
    assert (proof.sent_max, proof.sent_total) == (Fraction(3, 4), 3)


def test_the_runs_of_a_move_must_meet_those_of_one_other():
    """The engine packs many runs of one move into one message, so both sides must write them alike."""

    def steps(rank):
        other = 1 - rank
        if rank == 0:
            yield send(other, [0, 2, 4]), reduce(other, [0, 2, 4])
        else:
            yield send(other, [0, 2, 4]), reduce(other, [0, 2]), reduce(other, 4)

    with pytest.raises(
        ProofError, match="part 1 of 3 of a move to rank 1, which in step 1 expects part 1 of 2"
    ):
        prove(Schedule("allreduce", "test", 2, 5, steps))
