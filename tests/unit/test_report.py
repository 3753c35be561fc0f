"""Reports: what is read, modelled, said and written; the page itself in a browser that has no network."""

import csv
import io
import json
import re
import shutil
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
from click.testing import CliRunner

from mpicoll import launch
from mpicoll.bench import records
from mpicoll.bench.plot import bound
from mpicoll.cli import program
from mpicoll.model.network import Link, Machine
from mpicoll.model.simulate import simulate
from mpicoll.report import charts, data, modelled, pictures, sentences, style, tables, units
from mpicoll.report.figures import figures
from mpicoll.report.page import page
from mpicoll.report.winners import reigns, winners
from mpicoll.schedule import find
from mpicoll.selection import pipeline

MACHINE = Machine(
    Link(1e-6, 8e9, overhead=2e-7), Link(5e-6, 1e9, overhead=5e-7), combine=4e9, per_node=2, name="two & two"
)
TOML = """\
name = "two & two"
[rank]
combine = 4e9
[node]
ranks = 2
latency = 1e-6
bandwidth = 8e9
overhead = 2e-7
[network]
latency = 5e-6
bandwidth = 1e9
overhead = 5e-7
"""
SIZES, RANKS = (8, 4096, 1 << 20), (2, 3, 4)
ALGORITHMS = ("ring", "recursive_doubling", "binary_tree")
WHERE = {
    **{
        "study": 1,
        "mpi": "Some </script><b> 1.0",
        "mpicoll": "0.1.0",
        "hosts": ["here"],
        "cores": 4,
        "world": 4,
    },
    **{"dtype": "float64", "op": "SUM", "root": None, "in_place": False, "min_time_s": 0.1},
}


class Timing:
    """As of measure, which needs MPI."""

    def __init__(self, seconds, wrong=0):
        self.samples, self.batch, self.wrong = np.array(seconds), 1, wrong


def record(algorithm, size, ranks, seconds, native=None, wrong=0, **more):
    more = {"ranks": ranks, "nodes": -(-ranks // 2), "scaling": "strong", **WHERE, **more}
    base = None if native is None else native
    return records.record(
        more.pop("collective", "allreduce"), algorithm, size, Timing(seconds, wrong), base, **more
    )


def measured(scaling="strong"):
    """Make records from the model, with noise; native is twice as slow as ring."""
    noise, found = np.random.default_rng(7), []
    for ranks in RANKS:
        nodes = MACHINE.nodes(ranks)
        for wanted in SIZES:
            size = wanted * ranks if scaling == "weak" else wanted
            times = {}
            for name in ALGORITHMS:
                algorithm = find("allreduce", name)
                own = pipeline(size) if algorithm.pipelined else {}
                times[name] = simulate(
                    algorithm.schedule(ranks, nodes=nodes, **own), size, MACHINE, nodes
                ).seconds
            times["native"] = 2 * times["ring"]
            found += [
                record(
                    name, size, ranks, time * noise.uniform(0.9, 1.1, 21), times["native"], scaling=scaling
                )
                for name, time in times.items()
            ]
    return found


@pytest.fixture
def folder(tmp_path):
    """Make a folder of records."""

    def make(items, name="study", machine=None):
        place = tmp_path / name
        place.mkdir()
        records.append(items, str(place / "records.jsonl"))
        if machine:
            (place / "machine.toml").write_text(machine)
        return place

    return make


@pytest.fixture
def read(folder):
    """Read records as a study."""

    def read(items):
        (study,) = data.studies([folder(items)])
        return study

    return read


@pytest.fixture
def run(monkeypatch):
    monkeypatch.setattr(launch, "rank", lambda: None)
    return lambda *arguments: CliRunner().invoke(
        program, ["report", *map(str, arguments)], prog_name="mpicoll"
    )


# Two algorithms that change places, and native.
CROSSING = [
    *(record("native", size, 4, [4e-6 * time], 4e-6 * time) for size, time in ((8, 1), (64, 1), (512, 8))),
    *(record("star", size, 4, [time], native) for size, time, native in ((8, 2e-6, 4e-6), (64, 8e-6, 4e-6))),
    *(
        record("ring", size, 4, [time], native)
        for size, time, native in ((64, 9e-6, 4e-6), (512, 16e-6, 32e-6))
    ),
    record("auto", 8, 4, [1e-6], 4e-6),
]


# -- reading and reckoning ---------------------------------------------------------------------


def test_a_record_becomes_a_point(read):
    study = read([record("ring", 800, 4, [1e-6, 2e-6, 3e-6, 4e-6, 5e-6], 6e-6)])
    (point,) = study.rows
    assert (point["kind"], point["size"], point["load"], point["samples"]) == ("measured", 800, 800, 5)
    assert point["seconds"] == pytest.approx(3e-6)
    assert (point["p25"], point["p75"]) == (pytest.approx(2e-6), pytest.approx(4e-6))
    assert point["busbw"] == pytest.approx(800 / 3e-6 * 1.5)
    assert point["busbw25"] == pytest.approx(800 / 4e-6 * 1.5)
    assert point["ratio"] == pytest.approx(2)
    assert study.title == "allreduce, strong scaling; float64 SUM; Some </script><b> 1.0"


def test_what_differs_is_drawn_apart(folder):
    one, other = (
        record("ring", 8, 2, [1e-6]),
        record("ring", 8, 2, [1e-6], collective="bcast", op=None, root=0),
    )
    found = data.studies([folder([one, other], "a"), folder([one], "b")])
    assert [study.slug for study in found] == ["allreduce_strong", "bcast_strong", "allreduce_strong_3"]
    assert [study.title.rpartition("; ")[2] for study in found] == ["a", "a", "b"]


def test_wrong_results_are_left_out_and_named(read):
    study = read([record("ring", 8, 2, [1e-6]), record("star", 8, 2, [1e-7], wrong=3)])
    assert [item["algorithm"] for item in study.rows] == ["ring"]
    assert "Results were wrong, and are left out, of star." in page("x", [(study, [], [])])


def test_the_best_may_be_native_and_is_not_auto(read):
    cells = winners(read(CROSSING))
    assert [(cell["size"], cell["algorithm"], cell["next"]) for cell in cells] == [
        (8, "star", "native"),
        (64, "native", "star"),
        (512, "ring", "native"),
    ]
    assert [cell["ahead"] for cell in cells] == [pytest.approx(2)] * 3


def test_crossovers(read):
    more = record("ring", 4096, 4, [1e-4], 3e-4), record("native", 4096, 4, [3e-4], 3e-4)
    found = reigns(read([*CROSSING, *more]))
    assert [(item.algorithm, item.first, item.last, item.after) for item in found] == [
        ("star", 8, 8, None),
        ("native", 64, 64, 8),
        ("ring", 512, 4096, 64),
    ]
    assert found[2].ratio == (pytest.approx(2), pytest.approx(3))
    assert found[1].ratio == (1, 1)
    assert found[2].ahead == pytest.approx(2)


def test_efficiency_is_bandwidth_or_time_to_the_fewest_ranks(read):
    study = read([record("ring", 800, ranks, [ranks * 1e-6]) for ranks in (2, 4)])
    data.add_efficiency(study)
    assert [item["efficiency"] for item in study.rows] == [1, pytest.approx(1.5 / 4 * 2)]
    assert sentences.efficiency(study, 800) == (
        "At 800 B, ring has 75% of the bus bandwidth on 4 ranks that it has on 2."
    )


def test_weak_scaling_compares_times_at_the_same_bytes_a_rank(read):
    study = read([record("ring", 800 * p, p, [time], scaling="weak") for p, time in ((2, 1e-6), (4, 5e-6))])
    data.add_efficiency(study)
    assert study.values("load") == [800]
    assert study.rows[1]["efficiency"] == pytest.approx(0.2)
    assert sentences.efficiency(study, 800) == (
        "At 800 B a rank, ring has 20% of the speed on 4 ranks that it has on 2."
    )


# -- the model ---------------------------------------------------------------------------------


def test_the_model_is_the_simulators_and_goes_beyond(read):
    study = read(measured())
    ticks = []
    modelled.add_model(study, MACHINE, ticks.append)
    assert study.values("ranks", "modelled") == [2, 3, 4, 8, 16, 32]
    assert ticks[-1] == 1
    assert ticks == sorted(ticks)
    for ranks in (3, 16):
        schedule = find("allreduce", "ring").schedule(ranks)
        (point,) = (
            item
            for item in study.rows
            if (item["kind"], item["algorithm"], item["size"], item["ranks"])
            == ("modelled", "ring", 4096, ranks)
        )
        assert point["seconds"] == simulate(schedule, 4096, MACHINE, MACHINE.nodes(ranks)).seconds
        assert point["busbw"] == pytest.approx(4096 / point["seconds"] * 2 * (ranks - 1) / ranks)
    lines = {item["algorithm"]: item["line"] for item in study.rows if item["kind"] == "measured"}
    assert lines == {"native": True, **dict.fromkeys(ALGORITHMS, False)}


def test_the_bound_is_that_of_the_best_links(read):
    study = read(measured())
    modelled.add_model(study, MACHINE)
    least = {(r["size"], r["ranks"]): r["seconds"] for r in study.rows if r["kind"] == "bound"}
    assert least[1 << 20, 2] == pytest.approx(bound("allreduce", 1 << 20, 2, 1.4e-6, 1 / 8e9))
    for item in study.rows:
        if item["kind"] == "modelled":
            assert item["seconds"] >= least[item["size"], item["ranks"]] * (1 - 1e-9)


def test_a_burst_lowers_the_bound(read):
    shaped = Link(1e-6, 1e6, burst=1e6, peak=1e9)
    study = read([record("ring", size, 2, [1.0], nodes=2) for size in (10**6, 10**7)])
    modelled.add_model(study, Machine(shaped, shaped))
    least = {r["size"]: r["seconds"] for r in study.rows if r["kind"] == "bound" and r["ranks"] == 2}
    assert least == {10**6: pytest.approx(1e-6 + 1e-3), 10**7: pytest.approx(1e-6 + 9)}


def test_what_is_too_large_or_no_schedule_is_left_out_and_said(read, monkeypatch):
    monkeypatch.setattr(modelled, "MOST", 100)
    study = read([record("ring", 8, 4, [1e-6]), record("auto", 8, 4, [1e-6])])
    modelled.add_model(study, MACHINE)
    assert study.values("ranks", "modelled") == [4]
    assert study.left_out == [
        "auto, which is no schedule of its own",
        *(f"ring on {ranks} ranks, which is more than 100 moves" for ranks in (8, 16, 32)),
    ]
    assert "Not modelled: auto, which" in page("x", [(study, [], [])])


@pytest.mark.parametrize("root", [0, 1])
def test_parameters_and_roots_are_those_measured(read, root):
    study = read([record("chain:chunks=4", 1 << 20, 3, [1e-3], collective="bcast", op=None, root=root)])
    modelled.add_model(study, MACHINE)
    schedule = find("bcast", "chain").schedule(3, root=root, chunks=4)
    expected = simulate(schedule, 1 << 20, MACHINE, ((0, 1), (2,))).seconds
    (point,) = (item for item in study.rows if item["kind"] == "modelled" and item["ranks"] == 3)
    assert point["seconds"] == expected


# -- words and tables --------------------------------------------------------------------------


def test_sentences(read):
    study = read(CROSSING)
    cells = winners(study)
    assert sentences.curves(study, cells, "ranks", 4, "seconds") == (
        "On 4 ranks, fastest at 3 sizes measured: star (1), native (1), ring (1). "
        "At 512 B ring is the best of ours: 16 \u00b5s, 2.00 times as fast as native."
    )
    assert sentences.curves(study, cells, "load", 64, "busbw") == (
        "At 64 B, fastest at 1 rank count measured: native (1). "
        "On 4 ranks star is the best of ours: 12 MB/s, 2.00 times as slow as native."
    )
    assert sentences.best_map(cells) == (
        "Best in 3 measured cells: star (1), native (1), ring (1). Nothing is extrapolated."
    )


def test_sentences_of_the_model(read):
    study = read([record("ring", 4096, 2, [4e-6]), record("star", 4096, 2, [8e-6])])
    modelled.add_model(study, MACHINE)
    cells = winners(study)
    off = [
        abs(simulate(find("allreduce", name).schedule(2), 4096, MACHINE, ((0, 1),)).seconds / time - 1)
        for name, time in (("ring", 4e-6), ("star", 8e-6))
    ]
    said = sentences.curves(study, cells, "ranks", 2, "seconds")
    assert said.endswith(
        f"The model is off by {sum(off) / 2:.0%} in the median of these points, by {max(off):.0%} at most."
    )
    beyond = sentences.curves(study, cells, "ranks", 16, "seconds")
    assert beyond.startswith(
        "On 16 ranks nothing was measured; the lines are the model's, which knows nothing"
    )
    assert sentences.best_map(cells).startswith(
        "Best in 1 measured cell: ring (1). 3 faint cells with a dashed"
    )


def test_quantities_read_well():
    assert [units.format_time(time) for time in (1.5, 0.99996, 3.4149e-3, 12e-6, 2e-9)] == [
        *("1.5 s", "1 s", "3.41 ms", "12 \u00b5s", "2 ns")
    ]
    assert units.format_bandwidth(400e9) == "400 GB/s"


def test_tables_are_what_is_drawn(read, tmp_path):
    study = read([*CROSSING, record("ring", 8, 8, [1e-6, 3e-6])])
    modelled.add_model(study, MACHINE)
    drawn = figures(study)
    found = {table.name: table for table in tables.tables(study)}
    assert drawn
    assert list(found) == ["crossovers", "machine", "provenance", "results"]
    assert len(found["results"].rows) == len(study.rows)
    path = tmp_path / "crossovers.csv"
    tables.write_csv(found["crossovers"], path)
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[2] == {
        **{"ranks": "4", "from": "measured", "best": "ring", "size": "512 B"},
        **{"takes over between": "64 B and 512 B", "native / this": "2.00", "next / this, at least": "2.00"},
    }
    machine = dict(found["machine"].rows)
    assert machine["within a node: latency"] == "1 \u00b5s"
    assert machine["between nodes: bandwidth"] == "1 GB/s"
    assert dict(found["provenance"].rows)["mpi"] == "Some </script><b> 1.0"


def test_latex_takes_every_character():
    table = tables.Table("x", "X", "", ("a_b", "50%"), [("c & d", "e\\f {g} ~^#$ <1 \u00b5s>|")])
    lines = tables.latex(table).splitlines()
    assert lines[3] == r"a\_b & 50\% \\"
    assert lines[6] == (
        r"c \& d & e\textbackslash{}f \{g\} \textasciitilde{}\textasciicircum{}\#\$ "
        r"\textless{}1 \textmu{}s\textgreater{}\textbar{} \\"
    )
    assert [line for line in lines if line.startswith("\\") and line[1].islower()] == [
        *(r"\begin{longtable}{ll}", r"\toprule", r"\midrule", r"\endhead", r"\bottomrule", r"\end{longtable}")
    ]


# -- figures and the page ----------------------------------------------------------------------


NAMES = ["time_over_size", "bus_bandwidth_over_size", "time_over_ranks", "bus_bandwidth_over_ranks"]


def test_every_figure_renders(read):
    study = read(measured())
    modelled.add_model(study, MACHINE)
    drawn = figures(study)
    assert [figure.name for figure in drawn] == [*NAMES, "best", "efficiency_over_ranks"]
    for figure in drawn:
        assert set(figure.names) <= {"native", "bound", *ALGORITHMS}
        seen = set()
        for name, spec in [*figure.on_paper()][-2:]:
            picture = pictures.svg(spec)
            words = set(re.findall(r"<text[^>]*>([^<]+)</text>", picture))
            assert words >= set(figure.names), name
            seen.add(tuple(re.findall(r' d="([^"]+)"', picture)))
        assert len(seen) == min(len(figure.captions), 2)  # what is chosen is what is drawn
        expected = {"1 MiB"} if figure.name.endswith("_size") or figure.name == "best" else {"2", "32"}
        assert words >= expected
        assert figure.spec["description"]
    assert "16 modelled" in pictures.svg(drawn[4].spec)


def test_no_ranks_to_compare_and_no_vector(read):
    one = read([record("ring", size, 4, [1e-6]) for size in SIZES])
    assert [figure.name for figure in figures(one)] == [*NAMES[:2], "best"]


def test_a_barrier_has_no_sizes(read):
    barrier = read(
        [record("ring", 0, p, [1e-6 * p], collective="barrier", op=None, dtype=None) for p in (2, 4)]
    )
    modelled.add_model(barrier, MACHINE)
    drawn = figures(barrier)
    assert [figure.name for figure in drawn] == ["time_over_ranks", "best", "efficiency_over_ranks"]
    assert "Without a vector" in drawn[0].captions[0]
    for figure in drawn:
        assert "<path" in pictures.svg(figure.spec)


def test_series_differ_without_colour():
    """Shape and dashes together tell all apart that there can be."""
    looks = list(zip(style.shapes(20), style.dashes(20), strict=True))
    assert len({(shape, tuple(dash)) for shape, dash in looks}) == 22
    assert len(set(style.shapes(6))) == 8
    names = style.config()["range"]["category"][:9]
    assert len(set(names)) == 9


class References(HTMLParser):
    """Everything that a browser would fetch."""

    def __init__(self):
        super().__init__()
        self.found, self.tags = [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.found += [value for name, value in attrs if name in ("src", "href", "data", "srcset", "poster")]


def test_the_page_refers_to_nothing(read):
    study = read(measured())
    text = page("Title </script><b>", [(study, figures(study), tables.tables(study))])
    references = References()
    references.feed(text)
    assert references.found == ["data:,"]
    assert references.tags.count("script") == 3
    assert "b" not in references.tags
    assert not re.search(r"@import|url\(", text[: text.index("</style>")])
    assert "Some &lt;/script&gt;&lt;b&gt; 1.0" in text
    assert {"header", "main", "section", "h1", "h2", "h3", "figure", "figcaption", "table"} <= set(
        references.tags
    )
    report = json.loads(re.search(r'id="report">(.*?)</script>', text, re.DOTALL)[1])
    assert len(report["datasets"]) == 2  # rows, and the cells of the map


# -- the command -------------------------------------------------------------------------------


def refused(result, *parts):
    """Check for exit status 2 and one line."""
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    for part in parts:
        assert part in result.stderr


def test_a_report_with_all_files(run, folder, tmp_path):
    place = folder(CROSSING, machine=TOML)
    out = tmp_path / "out"
    result = run(place, "-o", tmp_path / "r.html", "--figures", out, "--tables", out / "tables")
    assert result.exit_code == 0, result.output
    assert result.output == ""
    assert "Modelled on two &amp; two." in (tmp_path / "r.html").read_text()
    assert {path.name for path in out.glob("*best*")} == {
        "allreduce_strong_best.png",
        "allreduce_strong_best.svg",
    }
    assert (out / "allreduce_strong_time_over_size_4.png").read_bytes().startswith(b"\x89PNG")
    assert (out / "allreduce_strong_time_over_size_4.svg").read_text().startswith("<svg")
    names = {path.name for path in (out / "tables").iterdir()}
    assert {"allreduce_strong_crossovers.csv", "allreduce_strong_results.tex"} <= names


def test_a_machine_that_is_given_goes_first(run, folder, tmp_path):
    result = run(folder(CROSSING, machine="nonsense"), "-o", tmp_path / "r.html", "--machine", "nvlink_node")
    assert result.exit_code == 0, result.output


def test_what_cannot_be_reported(run, folder, tmp_path):
    out = tmp_path / "r.html"
    good = folder(CROSSING)
    empty = tmp_path / "empty"
    empty.mkdir()
    refused(run(empty, "-o", out), str(empty))
    refused(run(tmp_path / "nothing", "-o", out), "nothing: no such folder")
    refused(run(folder([], "none"), "-o", out), "records.jsonl: no record")
    later = folder([record("ring", 8, 2, [1e-6], mpicoll="0.2.0")], "later")
    refused(run(good, later, "-o", out), "mpicoll: 0.1.0 in", "0.2.0 in", "expected studies of one version")
    bad = folder([{**CROSSING[0], "p75_us": None}], "bad")
    refused(run(bad, "-o", out), "bad/records.jsonl: line 1: p75_us: None given, expected more than 0")
    wrong = folder([record("star", 8, 2, [1e-6], wrong=1)], "wrong")
    refused(run(wrong, "-o", out), "no right result of allreduce")
    refused(run(good, "-o", out, "--machine", "no_such_machine"), "no_such_machine")
    refused(run(folder(CROSSING, "odd", machine="[rank]\ncombine = -1"), "-o", out), "machine.toml: line 2")
    assert not out.exists()
    refused(run(good, "-o", tmp_path / "no" / "r.html"), "no: No such file or directory")
    (tmp_path / "file").write_text("")
    refused(run(good, "-o", out, "--tables", tmp_path / "file" / "x"), "Not a directory")


def test_a_missing_extra_says_what_to_install(run, folder, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    refused(run(folder(CROSSING), "-o", tmp_path / "r.html"), 'pip install "mpicoll[study]"')


# -- the page in a browser ---------------------------------------------------------------------


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")
DRAWN = "theme => document.documentElement.dataset.drawn === theme"


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Make a page of two studies, one of them modelled."""
    place = tmp_path_factory.mktemp("report")
    items = [(name, measured(name)) for name in ("strong", "weak")]
    for name, found in items:
        (place / name).mkdir()
        records.append(found, str(place / name / "records.jsonl"))
    strong, weak = data.studies([place / "strong", place / "weak"])
    modelled.add_model(strong, MACHINE)
    path = place / "report.html"
    parts = [(study, figures(study), tables.tables(study)) for study in (strong, weak)]
    path.write_text(page("A report", parts), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def chromium():
    if CHROMIUM is None:
        pytest.skip("no chromium on PATH")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture
def opened(chromium, report):
    """Open the page without a network; it must ask for nothing, and complain of nothing."""
    context = chromium.new_context(
        viewport={"width": 1280, "height": 900}, offline=True, color_scheme="light"
    )
    context.set_default_timeout(200_000)  # a machine may be busy
    tab = context.new_page()
    requests, complaints = [], []
    tab.on("request", lambda request: requests.append(request.url))
    tab.on("console", lambda message: complaints.append(message.text))
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.goto(report.as_uri())
    tab.wait_for_function(DRAWN, arg="light")
    yield tab
    context.close()
    assert requests == [report.as_uri()]
    assert complaints == []


FIRST = "#allreduce_strong-time_over_size"


def faded(tab):
    """Count the marks of the first figure that have faded away."""
    return tab.locator(f'{FIRST} svg.marks .mark-symbol path[opacity="{charts.FADED}"]').count()


def test_every_figure_is_drawn(opened):
    charts_there = opened.locator("figure .chart svg.marks")
    assert charts_there.count() == 12
    for number in range(12):
        assert charts_there.nth(number).locator(".mark-symbol path, .mark-rect path").count() > 10


def test_a_click_in_the_legend_singles_out_and_back(opened):
    assert faded(opened) == 0
    name = opened.locator(f"{FIRST} .role-legend-label text", has_text="ring")
    name.click()
    first = faded(opened)
    assert first > 0
    opened.locator(f"{FIRST} .role-legend-label text", has_text="native").click()
    assert 0 < faded(opened) < first
    for other in ("ring", "native"):
        opened.locator(f"{FIRST} .role-legend-label text", has_text=other).click()
    assert faded(opened) == 0


def lines(tab):
    """Give the paths of the first figure's lines, in whatever order they are drawn."""
    return sorted(path.get_attribute("d") for path in tab.locator(f"{FIRST} .mark-line path").all())


def test_a_select_changes_figure_and_sentence(opened):
    before, figure = lines(opened), opened.locator(FIRST)
    assert figure.locator("figcaption").inner_text().startswith("On 4 ranks, fastest at 3 sizes measured: ")
    figure.locator("select").select_option("32, modelled")
    assert figure.locator("figcaption").inner_text().startswith("On 32 ranks nothing was measured")
    assert len(lines(opened)) == len(before) - 1  # native's
    figure.locator("select").select_option("4")
    assert lines(opened) == before


def test_the_wheel_zooms_with_shift_alone_and_a_double_click_goes_back(opened):
    line = opened.locator(f"{FIRST} .mark-line path").first
    before = line.get_attribute("d")
    there = f"document.querySelector('{FIRST} .mark-line path').getAttribute('d')"
    box = opened.locator(f"{FIRST} svg.marks").bounding_box()
    opened.mouse.move(box["x"] + box["width"] / 2, box["y"] + 150)
    opened.mouse.wheel(0, 20)
    assert line.get_attribute("d") == before
    opened.evaluate("window.scrollTo(0, 0)")
    opened.keyboard.down("Shift")
    opened.mouse.wheel(0, -300)
    opened.keyboard.up("Shift")
    opened.wait_for_function(
        f"before => {there} !== before",
        arg=before,
    )
    opened.mouse.dblclick(box["x"] + box["width"] / 2, box["y"] + 150)
    opened.wait_for_function(
        f"before => {there} === before",
        arg=before,
    )


def test_hovering_tells_all_values(opened):
    opened.locator(f"{FIRST} .mark-symbol.role-mark path").last.hover()
    tip = opened.locator("#vg-tooltip-element.visible")
    tip.wait_for()
    for word in (
        "algorithm",
        "measured",
        "4 ranks"[2:],
        "quartiles",
        "bus bandwidth",
        "efficiency",
        "samples",
    ):
        assert word in tip.inner_text(), word


def test_dark_mode_redraws_and_keeps_what_was_chosen(opened):
    def backgrounds():
        page_background = "getComputedStyle(document.body).backgroundColor"
        figure_background = f"document.querySelector('{FIRST} svg.marks').style.backgroundColor"
        return [opened.evaluate(text) for text in (page_background, figure_background)]

    assert backgrounds() == ["rgb(255, 255, 255)"] * 2
    opened.locator(f"{FIRST} select").select_option("2")
    opened.emulate_media(color_scheme="dark")
    opened.wait_for_function(DRAWN, arg="dark")
    assert backgrounds() == ["rgb(22, 24, 28)"] * 2
    assert opened.locator(f"{FIRST} select option:checked").inner_text() == "2"
    assert opened.locator(f"{FIRST} figcaption").inner_text().startswith("On 2 ranks")


@pytest.mark.parametrize("width", [1280, 400])
def test_nothing_is_cut_off(opened, width):
    opened.set_viewport_size({"width": width, "height": 900})
    opened.wait_for_timeout(100)
    opened.evaluate("() => turn")
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    cut = opened.evaluate(
        """() => [...document.querySelectorAll("svg.marks")].flatMap((svg) => {
          const outer = svg.getBoundingClientRect();
          return [...svg.querySelectorAll("text")]
            .filter((text) => text.getAttribute("opacity") !== "0" && text.textContent)
            .filter((text) => {
              const box = text.getBoundingClientRect();
              const [right, bottom] = [box.right - outer.right, box.bottom - outer.bottom];
              return right > 0.5 || bottom > 0.5 || box.left < outer.left - 0.5;
            })
            .map((text) => text.textContent);
        })"""
    )
    assert cut == []


def test_a_screenshot_has_colours(opened):
    from matplotlib.image import imread  # noqa: PLC0415 - reads PNG

    pixels = imread(io.BytesIO(opened.locator(FIRST).screenshot()), format="png")
    colours = np.unique((pixels[..., :3].reshape(-1, 3) * 255).astype(int), axis=0)
    assert len(colours) > 50
    for wanted in (0xE6, 0x9F, 0x00), (0x56, 0xB4, 0xE9):
        assert any(tuple(colour) == wanted for colour in colours)
