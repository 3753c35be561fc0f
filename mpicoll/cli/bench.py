"""``mpicoll bench``: our algorithms and the native collective, measured beside one another."""

from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from .. import launch
from ..bench import words
from ..bench.forms import FORMS
from ..schedule import algorithms as registered
from ..schedule import find
from ..schedule.collectives import COLLECTIVES
from .options import DTYPE, OP, RANKS, elements, start_ranks
from .program import agree, parsed, start_mpi

if TYPE_CHECKING:
    from mpi4py import MPI

    from ..bench.device import Devices


HOST, CUDA = "host", "cuda"
ROUTES = "auto,auto:transport=ipc,auto:transport=mpi,auto:transport=staged,nccl"  # of device memory


def parse_algorithms(collective: str, text: str, device: str = HOST) -> list[str]:
    """Read the option --algorithms; native is measured in any case."""
    items = [item.strip() for item in text.split(",")]
    known = ("all", "auto", "native") if device == HOST else ("all", "auto", "native", "nccl")
    for item in items:
        name, _ = words.parse_algorithm(item)
        if name not in known:
            find(collective, name)
    every = [algorithm.name for algorithm in registered(collective)]
    found = [name for item in items for name in (every if item == "all" else [item])]
    return [name for name in dict.fromkeys(found) if name != "native"]


def _algorithms(context: click.Context, _parameter: click.Parameter, value: str | None) -> list[str]:
    device = context.params["device"]
    value = value or ("all" if device == HOST else ROUTES)
    try:
        return parse_algorithms(context.params["collective"], value, device)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _list_algorithms() -> str:
    """Name every collective's algorithms, for the help."""
    lines = (f"{name}: {', '.join(a.name for a in registered(name))}" for name in COLLECTIVES)
    return "\n\n".join(("The algorithms:", *lines))


@click.command("bench", epilog=_list_algorithms())
@click.argument("collective", type=click.Choice(list(COLLECTIVES)), is_eager=True)  # others depend on it
@RANKS
@click.option(
    "--device",
    type=click.Choice((HOST, CUDA)),
    default=HOST,
    show_default=True,
    is_eager=True,  # algorithms depend on it
    help="Where the vectors are: cuda is the memory of NVIDIA GPUs, which the ranks of a node take in turn.",
)
@click.option(
    "--sizes",
    default="8:64Mi:x4",
    show_default=True,
    callback=parsed(words.parse_sizes),
    metavar="SIZES",
    help="Bytes of the vector, which is all ranks' blocks together: numbers, ranges a:b:xK (times K) and "
    "a:b:+K (plus K) with both ends, and commas between. Rounded up to whole elements in each block.",
)
@click.option(
    "--algorithms",
    show_default="all; with --device cuda the routes and nccl",
    callback=_algorithms,
    metavar="NAME,...",
    help="Beside native: all of the collective, or some; or auto, what a call gets that asks for none. "
    "Parameters follow a colon: NAME:chunks=16. In device memory the route is one of them, as in "
    "auto:transport=ipc, and nccl is NCCL's collective.",
)
@DTYPE
@OP
@click.option(
    "--root",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    metavar="RANK",
    help="For bcast, gather, reduce and scatter.",
)
@click.option("--in-place", is_flag=True, help="Give the vector in the buffer of the result.")
@click.option(
    "--min-time",
    type=click.FloatRange(0, 3600, min_open=True),
    default=0.1,
    show_default=True,
    metavar="SECONDS",
    help="What to spend on each algorithm at each size; at least 5 samples are taken of each.",
)
@click.option(
    "--check/--no-check",
    default=True,
    show_default=True,
    help="Poison the receive buffer before and check the result after each sample.",
)
@click.option(
    "--json", type=click.Path(dir_okay=False), metavar="FILE", help="Write one record for each row."
)
@click.option(
    "--plot", type=click.Path(dir_okay=False), metavar="FILE", help="Draw time over size: PNG, SVG or PDF."
)
@click.pass_context
def command(
    context: click.Context,
    collective: str,
    *,
    ranks: int | None,
    device: str,
    sizes: list[int],
    algorithms: list[str],
    dtype: str,
    op: str,
    root: int,
    in_place: bool,
    check: bool,
    min_time: float,
    json: str | None,
    plot: str | None,
) -> int:
    """Measure our algorithms beside the MPI library's own collective.

    Start it with mpiexec or with -n. At each size, samples of all algorithms are interleaved in a random
    order. All ranks meet in a barrier before a sample, outside the timed part, and the slowest rank's time
    counts. Short calls are timed in batches, of about 50 us and at most 100 calls, where every rank waits for
    all others. Results are checked; what is wrong is counted over all ranks and samples, and makes the exit
    status 1.

    algbw is size / time. busbw is algbw times a factor, for p ranks: 2(p-1)/p for allreduce; (p-1)/p for
    allgather, alltoall, gather, reduce_scatter and scatter; 1 for the others. ratio is native's median / the
    median.

    In device memory native is left out, and ratio is to auto:transport=staged, where the MPI library's
    collectives are not CUDA-aware. Vectors are copied to the device and back outside the timed part.
    """
    form = FORMS[collective]
    for name in form.lacks():
        if context.get_parameter_source(name) != ParameterSource.DEFAULT:
            raise click.UsageError(f"{collective} has no --{name.replace('_', '-')}")
    if device == CUDA and not form.vector:
        raise click.UsageError(f"{collective} has no --device, as there is no vector")
    start_ranks(ranks)
    op = op if form.combines else ""
    element = elements(dtype, op)
    world = start_mpi()
    if world.size == 1 and launch.rank() is None:
        raise click.UsageError("one rank has nobody to talk to: start it with -n RANKS or with mpiexec")
    if root >= world.size:
        raise click.UsageError(f"--root {root} given, expected 0 to {world.size - 1}")
    agree(world, _problem(json, plot) if world.rank == 0 else None)

    from ..bench import measure, provenance, run  # noqa: PLC0415 - need MPI

    devices = _devices(world) if device == CUDA else None
    if devices is not None and devices.baseline not in ("native", *algorithms):
        algorithms = [devices.baseline, *algorithms]
    wanted, sizes = sizes, run.vector_sizes(sizes, collective, element, world.size)
    where = provenance.provenance(world) | (devices.record() if devices else {})
    baseline = devices.baseline if devices else "native"
    alpha, beta = measure.ping_pong(world) if plot and not devices else (0.0, 0.0)
    report = None
    if world.rank == 0:
        from ..bench import table  # noqa: PLC0415 - only rank 0 needs rich
        from .bench_report import Report  # noqa: PLC0415

        unit = element.itemsize * form.blocks(world.size)
        caption = table.caption(
            collective,
            where,
            in_place=in_place,
            root=root if form.rooted else None,
            rounded=unit if form.vector and any(size % unit for size in wanted) else 0,
            baseline=baseline,
        )
        report = Report(caption, sizes, algorithms, json=json, baseline=baseline)
    for rows, refusals in run.benchmark(
        world,
        run.competitors(world, algorithms, op, collective=collective, root=root, devices=devices),
        sizes,
        dtype=element,
        op=op,
        where=where,
        collective=collective,
        root=root,
        in_place=in_place,
        check=check,
        min_time=min_time,
        tick=report.tick if report else None,
        devices=devices,
    ):
        if report:
            report.add(rows, refusals)
    return world.bcast(report.finish(plot, alpha, beta) if report else None)


def _devices(world: "MPI.Intracomm") -> "Devices":
    """Give each rank its device, or end with the reason."""
    from ..bench import device  # noqa: PLC0415 - needs MPI
    from ..errors import DeviceError  # noqa: PLC0415

    try:
        return device.find(world)
    except (DeviceError, ValueError) as error:
        raise click.UsageError(f"--device cuda: {error}") from None


def _problem(json: str | None, plot: str | None) -> str | None:
    """Say which file cannot be written, before time is spent; for rank 0, which writes them."""
    from ..bench.plot import check_target  # noqa: PLC0415 - needs MPI

    try:
        if json:
            with open(json, "w", encoding="utf-8"):
                pass
        if plot:
            check_target(plot)
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    except ValueError as error:
        return str(error)
    return None
