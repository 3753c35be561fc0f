"""Every collective in every form by every algorithm, against NumPy."""

import numpy as np
import pytest
from collective_calls import FORMS, METHODS, REDUCING, ROOTED, UNEQUAL, draw, run, values
from hypothesis import given, settings
from hypothesis import strategies as st
from mpi4py import MPI

import mpicoll
from mpicoll.engine.lowering import Limits
from mpicoll.schedule import algorithms, find

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.Get_rank(), WORLD.Get_size()
SPLIT = tuple(tuple(range(node, SIZE, 2)) for node in range(min(2, SIZE)))

COMMUNICATORS = {
    "compiled": mpicoll.Communicator(WORLD),
    "few segments": mpicoll.Communicator(WORLD, limits=Limits(segment=48, segments=5)),
    "many segments": mpicoll.Communicator(WORLD, limits=Limits(segment=32, segments=1000, message=100)),
    "long messages": mpicoll.Communicator(WORLD, limits=Limits(segment=32, whole=256, message=1000)),
    "two nodes": mpicoll.Communicator(WORLD, nodes=SPLIT),
    "reference": mpicoll.Communicator(WORLD, engine="reference"),
}
COUNTS = [0, 1, 3, 17, 1000]
TYPES = ["u1", "i8", "f4", "c16"]
OTHERS = ["?", "S3", "f2", [("a", "u2"), ("b", "f8")]]  # which MPI has not
SUMMED = ["i4", "u8", "f4", "f8", "c8"]
NARROW = ["i1", "u2", "f2"]  # whose sums saturate in Open MPI, or are not in MPI


def by(method):
    """Give what the method may be called with as its algorithm."""
    suited = [
        algorithm.name
        for algorithm in algorithms(METHODS[method])
        if algorithm.serves(SIZE) and not (algorithm.transit and method in UNEQUAL)
    ]
    return ["auto", "native", *suited]


WAYS = [(method, name) for method in METHODS for name in by(method)]


def options_of(method, name, seed):
    """Give the algorithm as an option, and half of the times parameters of its own."""
    options = {"algorithm": name}
    if name in ("auto", "native") or seed % 2:
        return options
    variants = find(METHODS[method], name).variants
    return options | {key: choices[seed // 2 % len(choices)] for key, choices in variants.items()}


def type_of(method, name, seed):
    """Choose a type of elements."""
    if method in REDUCING:
        types = SUMMED if name == "native" else [*SUMMED, *NARROW]
    else:
        types = TYPES if name == "native" else [*TYPES, *OTHERS]
    return np.dtype(types[seed % len(types)])


def drawn(method, **how):
    """Draw this rank's part of a call; in place where MPI has that."""
    in_place = how.pop("in_place", False) and (method not in ROOTED or how["root"] == RANK)
    op = MPI.SUM if np.dtype(how["dtype"]).kind == "c" or how["seed"] % 3 else MPI.MAX
    return draw(method, RANK, SIZE, in_place=in_place, op=op, **how)


def check(call, method, name):
    """Check the result, but for what MPI leaves open and we do not."""
    if not (method == "Exscan" and name == "native" and RANK == 0):
        call.check()


@pytest.mark.parametrize(("method", "name"), WAYS)
@settings(max_examples=24 if SIZE < 4 else 8)  # more ranks than cores take long
@given(
    form=st.sampled_from(FORMS),
    kind=st.sampled_from(list(COMMUNICATORS)),
    count=st.sampled_from(COUNTS),
    root=st.integers(0, SIZE - 1),
    in_place=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_algorithm_in_every_form(method, name, form, kind, count, root, in_place, seed):
    # Open MPI's own Ialltoallv in place is wrong now and then, from a plain communicator, too.
    in_place = in_place and (method, name) != ("Alltoallv", "native")
    how = {"count": count, "dtype": type_of(method, name, seed), "root": root, "in_place": in_place}
    for again in range(2):  # by a new plan, and by the plan kept, on other memory
        call = drawn(method, seed=seed + 3 * again, **how)
        run(COMMUNICATORS[kind], form, method, call.arguments, **options_of(method, name, seed))
        check(call, method, name)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(("method", "name"), WAYS)
def test_every_root_and_count(method, name, in_place):
    comm = COMMUNICATORS["compiled"]
    for root in range(SIZE if method in ROOTED else 1):
        for count in COUNTS:
            for seed in range(2):
                call = drawn(
                    method, count=count, dtype=np.dtype("i4"), root=root, in_place=in_place, seed=seed
                )
                run(comm, "blocking", method, call.arguments, algorithm=name)
                check(call, method, name)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("method", list(METHODS))
def test_persistent_reads_and_writes_anew_at_each_start(method, in_place):
    """The native ones do not in place, with Intel MPI."""
    comm = COMMUNICATORS["compiled"]
    call = drawn(method, count=17, dtype=np.dtype("f8"), root=SIZE - 1, in_place=in_place, seed=5)
    request = getattr(comm, f"{method}_init")(*call.arguments)
    for _ in range(3):
        call.reset()
        request.Start()
        request.Wait()
        call.check()
    request.Free()


def by_the_same_memory(call):
    """Give an in-place call without IN_PLACE: the memory of one side is in the other."""
    send, recv, *more = call.arguments
    if recv is MPI.IN_PLACE:
        return send, own_block(send), *more
    if send is MPI.IN_PLACE:
        return recv if len(recv) == 17 else own_block(recv), recv, *more
    return call.arguments


def own_block(whole):
    return whole[17 * RANK : 17 * (RANK + 1)]


@pytest.mark.parametrize(
    "method", ["Gather", "Scatter", "Allgather", "Reduce", "Allreduce", "Scan", "Exscan"]
)
def test_the_same_memory_in_both_buffers(method):
    """It means in place, and is not taken for what two arrays of that kind mean the next time."""
    comm, how = COMMUNICATORS["compiled"], {"count": 17, "dtype": np.dtype("f8"), "root": SIZE - 1}
    for seed in range(6):
        call = drawn(method, in_place=True, seed=seed, **how)
        run(comm, "blocking", method, by_the_same_memory(call))
        call.check()
        for in_place in (False, False, True):
            call = drawn(method, in_place=in_place, seed=seed, **how)
            run(comm, "blocking", method, call.arguments)
            call.check()


@pytest.mark.parametrize("method", list(METHODS))
def test_long_vectors(method):
    for name in by(method):
        nbytes = 2_000_000 if name in ("auto", "native") else find(METHODS[method], name).limit or 2_000_000
        for in_place in (False, True):
            call = drawn(
                method,
                count=nbytes // 8 // (1 if METHODS[method] == "allreduce" else SIZE),
                dtype=np.dtype("i8"),
                root=SIZE // 2,
                in_place=in_place,
                seed=1,
            )
            run(COMMUNICATORS["compiled"], "blocking", method, call.arguments, algorithm=name)
            check(call, method, name)


@pytest.mark.parametrize("dtype", OTHERS, ids=str)
@pytest.mark.parametrize("method", [method for method in METHODS if method not in REDUCING])
def test_long_vectors_of_types_that_mpi_has_not(method, dtype):
    """Whatever serves them: no length is too long for bytes to be moved."""
    count = 5_000_000 // np.dtype(dtype).itemsize // (1 if method == "Bcast" else SIZE)
    call = drawn(method, count=count, dtype=np.dtype(dtype), root=SIZE // 2, in_place=False, seed=2)
    run(COMMUNICATORS["compiled"], "blocking", method, call.arguments)
    call.check()


# -- operations --------------------------------------------------------------------------------

PAIR = np.dtype([("value", "f8"), ("index", "i4")], align=True)
ON_INTEGERS = ["SUM", "PROD", "MIN", "MAX", "LAND", "LOR", "LXOR", "BAND", "BOR", "BXOR"]
PREDEFINED = {name: ["i1", "u2", "i8"] for name in ON_INTEGERS} | {"MINLOC": [PAIR], "MAXLOC": [PAIR]}
PREDEFINED["SUM"] = ["i4", "u8"]  # Open MPI's saturate for less
ON_FLOATS = {"SUM": ["f4", "c16"], "PROD": ["f8", "c8"], "MIN": ["f4"], "MAX": ["f8"]}


def native_and_ours(method, vectors, op, spec, **options):
    """Give the results of the library's own collective and of ours."""
    counts = [2] * SIZE
    results = []
    for comm in (WORLD, COMMUNICATORS["compiled"]):
        mine = vectors[RANK].copy()
        out = np.zeros_like(mine)
        whole = METHODS[method] != "reduce_scatter"
        recv = spec(out if whole else out[:2])
        more = [counts] if method == "Reduce_scatter" else []
        more += [op, SIZE - 1] if method == "Reduce" else [op]
        how = {} if comm is WORLD else options
        getattr(comm, method)(spec(mine), recv, *more, **how)
        if method == "Exscan" and RANK == 0:
            out[:] = 0
        results.append(out)
    return results


@pytest.mark.parametrize("method", REDUCING)
@pytest.mark.parametrize("name", PREDEFINED)
def test_predefined_operations(method, name):
    for dtype in PREDEFINED[name] + ON_FLOATS.get(name, []):
        vectors = [values(np.random.default_rng(rank), dtype, 2 * SIZE) for rank in range(SIZE)]
        if dtype is PAIR:
            for rank, vector in enumerate(vectors):
                vector["value"], vector["index"] = np.arange(2 * SIZE) * rank % 3, SIZE - rank
        elif name.startswith("L"):
            vectors = [vector % 2 for vector in vectors]
        native, ours = native_and_ours(
            method,
            vectors,
            getattr(MPI, name),
            lambda array: [array, MPI.DOUBLE_INT] if array.dtype == PAIR else array,
        )
        if dtype is PAIR:
            assert ours.tolist() == native.tolist()
        elif np.dtype(dtype).kind in "fc" and name == "PROD":
            np.testing.assert_allclose(ours, native, rtol=1e-6)
        else:
            np.testing.assert_array_equal(ours, native)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "method", [method for method in REDUCING if METHODS[method] not in ("scan", "exscan")]
)
@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", "c8", "i4", "u1"])
def test_average(method, dtype, form):
    """The sum divided by the number of ranks; integers truncated toward zero."""
    comm = COMMUNICATORS["compiled"]
    for name in ("auto", *by(method)[2:]):
        for in_place in (False, RANK == 0 or method != "Reduce"):
            call = draw(method, RANK, SIZE, count=17, dtype=np.dtype(dtype), in_place=in_place, seed=4)
            arguments = [mpicoll.AVG if argument is MPI.SUM else argument for argument in call.arguments]
            if method != "Reduce" or RANK == 0:
                call.wanted = averaged(call.wanted)
            run(comm, form, method, arguments, algorithm=name)
            call.check()


def averaged(total):
    if total.dtype.kind in "iu":
        wide = total.astype("i8")
        return (np.sign(wide) * (abs(wide) // SIZE)).astype(total.dtype)
    if total.dtype.kind == "c":
        return (total.real / SIZE + 1j * (total.imag / SIZE)).astype(total.dtype)
    return (total.astype("f4" if total.dtype.itemsize == 2 else total.dtype) / SIZE).astype(total.dtype)


def test_average_is_not_for_native_nor_for_bool():
    comm = COMMUNICATORS["compiled"]
    with pytest.raises(ValueError, match="AVG is not an op of MPI's, native cannot serve it"):
        comm.Allreduce(np.ones(2), np.ones(2), mpicoll.AVG, algorithm="native")
    with pytest.raises(MPI.Exception, match="AVG is not defined for bool"):
        comm.Allreduce(np.ones(2, bool), np.ones(2, bool), mpicoll.AVG)


MAP = np.dtype([("slope", "u4"), ("shift", "u4")])  # the map x -> slope x + shift modulo 2**32


def compose_bytes(left, right, _):
    first, second = np.frombuffer(left, MAP), np.frombuffer(right, MAP)
    second["shift"] += first["shift"] * second["slope"]
    second["slope"] *= first["slope"]


def compose(first, second):
    return first.slope * second.slope, second.slope * first.shift + second.shift


# made once, since they are compiled for each element type
OURS = mpicoll.op(compose)
RIGHT = mpicoll.op(lambda a, b: b)
COMMUTATIVE = {
    MPI.SUM.handle: mpicoll.op(lambda a, b: a + b, commutative=True),
    MPI.MAX.handle: mpicoll.op(lambda a, b: a if a > b else b, commutative=True),
}


def composed(maps):
    """Apply maps one after the other: associative, exact, and not commutative."""
    result = maps[0].copy()
    for second in maps[1:]:
        result["shift"] = result["shift"] * second["slope"] + second["shift"]
        result["slope"] *= second["slope"]
    return result


def in_order(method):
    """Give the algorithms that keep the order of the ranks."""
    return ["auto", *(name for name in by(method)[2:] if not find(METHODS[method], name).commutative)]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("whose", ["of mpi4py", "of ours"])
@pytest.mark.parametrize("method", REDUCING)
def test_operands_stay_in_rank_order(method, whose, form):
    comm = COMMUNICATORS["compiled"]
    maps = [values(np.random.default_rng([rank, 1]), MAP, 3 * SIZE) for rank in range(SIZE)]
    op = OURS if whose == "of ours" else MPI.Op.Create(compose_bytes, commute=False)
    datatype = MPI.UINT32_T.Create_contiguous(2).Commit()
    whole, begin = METHODS[method] != "reduce_scatter", 3 * RANK
    wanted = {
        "Scan": lambda: composed(maps[: RANK + 1]),
        "Exscan": lambda: composed(maps[:RANK]) if RANK else None,
        "Reduce": lambda: composed(maps) if RANK == SIZE - 1 else None,
    }.get(method, lambda: composed(maps))()
    for name in in_order(method):
        mine, out = maps[RANK].copy(), np.zeros(3 * SIZE if whole else 3, MAP)
        spec = (lambda array: array) if whose == "of ours" else (lambda array: [array, datatype])
        more = [[3] * SIZE, op] if method == "Reduce_scatter" else [op]
        more += [SIZE - 1] if method == "Reduce" else []
        run(comm, form, method, (spec(mine), spec(out), *more), algorithm=name)
        if wanted is not None:
            np.testing.assert_array_equal(out, wanted if whole else wanted[begin : begin + 3])
        np.testing.assert_array_equal(mine, maps[RANK])
    if op is not OURS:
        op.Free()
    datatype.Free()


@pytest.mark.parametrize("method", REDUCING)
def test_algorithms_that_swap_refuse_ops_that_do_not_commute(method):
    swapping = sorted({*by(method)[2:]} - {*in_order(method)})
    more = [[1] * SIZE, RIGHT] if method == "Reduce_scatter" else [RIGHT]
    arguments = np.ones(SIZE), np.ones(1 if METHODS[method] == "reduce_scatter" else SIZE), *more
    for name in swapping:
        for comm in (COMMUNICATORS["compiled"], COMMUNICATORS["reference"]):
            with pytest.raises(ValueError, match=f"{name} needs a commutative op"):
                getattr(comm, method)(*arguments, algorithm=name)


@pytest.mark.parametrize("method", REDUCING)
def test_functions_of_numbers(method):
    """Commutative ones run by all algorithms."""
    for op in (MPI.SUM, MPI.MAX):
        for name in ("auto", *by(method)[2:]):
            call = draw(method, RANK, SIZE, count=17, dtype=np.dtype("f8"), seed=6, op=op)
            arguments = [COMMUTATIVE[op.handle] if each is op else each for each in call.arguments]
            run(COMMUNICATORS["compiled"], "blocking", method, arguments, algorithm=name)
            call.check()


def test_functions_that_get_the_handles_of_others():
    """A plan is of the function, not of its handle."""

    def adding(constant):
        return mpicoll.op(lambda a, b: a + b + constant, commutative=True)

    for constant in range(3):
        op = adding(constant)
        for _ in range(2):
            COMMUNICATORS["compiled"].Allreduce(np.ones(2), out := np.empty(2), op)
            assert (out == SIZE + (SIZE - 1) * constant).all()
        op.Free()


@pytest.mark.parametrize("commute", [False, True])
def test_functions_on_bytes(commute):
    """What mpi4py makes of a function, on a plain array."""
    comm = COMMUNICATORS["compiled"]

    def add(left, right, _):
        np.frombuffer(right, "f8")[:] += np.frombuffer(left, "f8")

    op = MPI.Op.Create(add, commute)
    for method in REDUCING:
        for form in FORMS:
            call = draw(method, RANK, SIZE, count=17, dtype=np.dtype("f8"), seed=6)
            run(comm, form, method, [op if each is MPI.SUM else each for each in call.arguments])
            if not (method == "Exscan" and RANK == 0):
                call.check()
    op.Free()
