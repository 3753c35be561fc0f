"""What a machine's model says of what was measured, and of more ranks than there were."""

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any

from ..bench.forms import FORMS
from ..bench.plot import bound
from ..bench.words import parse_algorithm
from ..model.network import Link, Machine
from ..model.program import Program, program
from ..model.simulate import simulate
from ..schedule import Algorithm, bounds, find
from ..schedule.registry import Nodes
from ..selection import pipeline
from .data import BOUND, MEASURED, MODELLED, Row, Study, many, row

BEYOND = 8  # times the measured ranks
MOST = 1 << 21  # moves of a schedule: a second or two


def ranks_beyond(most: int) -> list[int]:
    """Give the powers of two above the measured numbers of ranks that are modelled."""
    return [1 << n for n in range(1, 40) if most < 1 << n <= BEYOND * most]


def add_model(study: Study, machine: Machine, tick: Callable[[float], None] | None = None) -> None:
    """Add rows that were simulated on a machine, and the bound there.

    Ranks that were measured are on as many nodes as there; more ranks fill the machine's nodes.

    Parameters
    ----------
    study : Study
    machine : Machine
    tick : callable, optional
        Is told which fraction is done.
    """
    study.machine = machine
    measured = [item for item in study.rows if item["kind"] == MEASURED]
    on_nodes = {item["ranks"]: item["nodes"] for item in measured}
    counts = [p for p in (*sorted(on_nodes), *ranks_beyond(max(on_nodes))) if p > 1]
    loads = study.values("load")
    for number, p in enumerate(counts):
        nodes = _placed(machine, p, on_nodes[p]) if p in on_nodes else machine.nodes(p)
        sizes = {load: load * p if study.weak else load for load in loads}
        sizes |= {item["load"]: item["size"] for item in measured if item["ranks"] == p}
        for label in study.series:
            study.rows += _simulated(study, label, nodes, p, sizes)
        study.rows += _bounds(study.collective, machine, len(nodes), p, sizes)
        if tick is not None:
            tick((number + 1) / len(counts))
    modelled = {item["algorithm"] for item in study.rows if item["kind"] == MODELLED}
    for item in measured:
        item["line"] = item["algorithm"] not in modelled


def _placed(machine: Machine, size: int, nodes: int) -> Nodes:
    """Put ranks on so many nodes: as on the machine if it has so many then, otherwise in equal blocks."""
    filled = machine.nodes(size)
    if len(filled) == nodes:
        return filled
    return tuple(tuple(range(*edges)) for edges in pairwise(bounds(size, nodes)))


def _simulated(study: Study, label: str, nodes: Nodes, size: int, sizes: Mapping[int, int]) -> Iterator[Row]:
    machine = study.machine
    assert machine is not None
    name, parameters = parse_algorithm(label)
    try:
        algorithm = find(study.collective, name)
    except ValueError:  # auto, for one, which is a choice and no algorithm
        _leave_out(study, f"{label}, which is no schedule of its own")
        return
    root = {"root": study.records[0]["root"]} if algorithm.rooted else {}
    moves: dict[tuple[Any, ...], Program | None] = {}
    for load, nbytes in sizes.items():
        if not algorithm.serves(size) or (algorithm.limit is not None and nbytes > algorithm.limit):
            continue
        own = (pipeline(nbytes) if algorithm.pipelined else {}) | root | parameters
        key = tuple(own.items())
        if key not in moves:
            moves[key] = _program(algorithm, size, nodes, own)
        if (found := moves[key]) is None:
            _leave_out(study, f"{label} on {many(size, 'rank')}, which is more than {MOST:,} moves")
            continue
        seconds = simulate(found, nbytes, machine, nodes).seconds
        if seconds > 0:
            yield _timed(MODELLED, label, study.collective, nbytes, size, load, seconds)


def _program(algorithm: Algorithm, size: int, nodes: Nodes, parameters: dict[str, Any]) -> Program | None:
    """Write out all moves, unless they are too many; the last rank has about as many as most."""
    schedule = algorithm.schedule(size, nodes=nodes, **parameters)
    if size * sum(map(len, schedule.steps(size - 1))) > MOST:
        return None
    return program(schedule)


def _bounds(
    collective: str, machine: Machine, nodes: int, size: int, sizes: Mapping[int, int]
) -> Iterator[Row]:
    """Give the least that messages one after the other take, over the best links that there are."""
    links = [machine.near] * (nodes < size) + [machine.far] * (nodes > 1)
    alpha = min(link.latency + 2 * link.overhead for link in links)
    for load, nbytes in sizes.items():
        passing = FORMS[collective].busbw(size) * nbytes
        beta = min(_carry(link, passing) for link in links) / passing if passing else 0.0
        seconds = bound(collective, nbytes, size, alpha, beta)
        if seconds > 0:
            yield _timed(BOUND, BOUND, collective, nbytes, size, load, seconds)


def _carry(link: Link, nbytes: float) -> float:
    """Give the least seconds that bytes take; some may have passed faster."""
    return max(nbytes / max(link.peak, link.bandwidth), (nbytes - link.burst) / link.bandwidth)


def _timed(kind: str, label: str, collective: str, nbytes: int, size: int, load: int, seconds: float) -> Row:
    busbw = FORMS[collective].busbw(size) * nbytes / seconds
    return row(kind, label, nbytes, size, load, seconds=seconds, busbw=busbw or None)


def _leave_out(study: Study, what: str) -> None:
    if what not in study.left_out:
        study.left_out.append(what)
