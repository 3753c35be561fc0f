"""The choice among tables, and the table that is read from a file."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpicoll import tuning
from mpicoll.selection import (
    AUTO,
    MESSAGE,
    NATIVE,
    SHARED,
    Asked,
    check_environment,
    choose,
    environment,
)
from mpicoll.tuning import Tuned, Tuning

TABLE = """\
# A comment.
format = 1

[measured]
mpi = "Some MPI 1.0"

[[allreduce]]
ranks = 4
nodes = 1
bytes = [1, 4096]
algorithm = "ring"

[[allreduce]]
ranks = 4
nodes = 2
bytes = [1, 4096] # to 4 KiB
algorithm = "two_level"
transport = "shared"
parameters = {leaders = 1, inter = "recursive_doubling"}

[[bcast]]
ranks = 4
nodes = 1
bytes = [4097, 65536]
algorithm = "native"
"""


def chosen(what, algorithm=AUTO, text=TABLE, variables=()):
    return choose(what, algorithm, dict(variables), tuning=tuning.parse(text, "table.toml"))


def test_a_table_is_read():
    assert tuning.parse(TABLE, "table.toml") == Tuning(
        "table.toml",
        (
            Tuned("allreduce", 4, 1, 1, 4096, "ring", SHARED),
            Tuned(
                "allreduce",
                4,
                2,
                1,
                4096,
                "two_level",
                SHARED,
                (("inter", "recursive_doubling"), ("leaders", 1)),
            ),
            Tuned("bcast", 4, 1, 4097, 65536, "native", SHARED),
        ),
    )


def test_the_tuned_table_goes_before_the_built_in_one():
    choice = chosen(Asked("allreduce", 4096, 4, nodes=1))
    assert (choice.algorithm, choice.transport, choice.asked) == ("ring", SHARED, False)
    assert choice.reason == "tuned table table.toml: vectors of 1 to 4,096 bytes on 4 ranks, 1 node"
    assert chosen(Asked("bcast", 5000, 4, nodes=1)).algorithm == NATIVE
    two = chosen(Asked("allreduce", 8, 4, nodes=2))
    assert two.algorithm == "two_level"
    assert dict(two.parameters) == {"leaders": 1, "inter": "recursive_doubling"}


def test_the_call_and_the_environment_go_before_it():
    what = Asked("allreduce", 8, 4, nodes=1)
    assert chosen(what, "star").reason == "asked for by the call"
    variables = {"MPICOLL_ALLREDUCE": "circulant"}
    assert chosen(what, variables=variables).algorithm == "circulant"


@pytest.mark.parametrize(
    "what",
    [
        Asked("allreduce", 4097, 4, nodes=1),  # longer than measured
        Asked("allreduce", 0, 4, nodes=1),  # shorter
        Asked("allreduce", 8, 3, nodes=1),  # other ranks
        Asked("allreduce", 8, 5, nodes=1),
        Asked("allreduce", 8, 4, nodes=4),  # no shared memory
        Asked("allreduce", 8, 4, nodes=1, commutative=False),  # ring needs a commutative op
        Asked("reduce", 8, 4, nodes=1),
        Asked("bcast", 5000, 4, nodes=1, native=False),
        Asked("bcast", None, 4, nodes=1),
    ],
)
def test_where_no_row_fits_the_built_in_table_decides(what):
    assert chosen(what) == choose(what, AUTO, {})
    assert chosen(what).reason.startswith("built-in table")


def test_the_transport_is_the_rows():
    text = TABLE.replace('algorithm = "ring"', 'algorithm = "ring"\ntransport = "message"')
    assert chosen(Asked("allreduce", 8, 4, nodes=1), text=text).transport == MESSAGE


@given(st.integers(0, 10**9), st.integers(1, 9), st.integers(1, 9))
def test_a_row_serves_just_what_it_is_for(nbytes, ranks, nodes):
    fits = chosen(Asked("allreduce", nbytes, ranks, nodes=min(nodes, ranks))).reason.startswith("tuned")
    assert fits == (1 <= nbytes <= 4096 and ranks == 4 and min(nodes, ranks) in (1, 2))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("format = 1", "", "line 1: format: expected 1"),
        ("format = 1", "format = 2", "line 2: format: expected 1"),
        ("format = 1", "format = ", "line 2: Invalid value"),
        ("[[bcast]]", "[[broadcast]]", "line 21: broadcast: unknown, expected allgather, allreduce"),
        ("[[bcast]]", "[bcast]", "line 21: bcast: {'ranks': 4"),
        ("[measured]", "bcast = 7\n[measured]", "Cannot"),
        ("[4097, 65536]", "[4097]", "line 24: bcast.bytes [4097] given, expected [least, most], integers"),
        ("[4097, 65536]", "[65536, 4097]", "line 24: bcast.bytes [65536, 4097] given"),
        ("[4097, 65536]", "[-1, 4097]", "line 24: bcast.bytes [-1, 4097] given"),
        ("nodes = 2", "nodes = 0", "line 15: allreduce.nodes 0 given, expected an integer from 1 on"),
        ("nodes = 2", "nodes = true", "line 15: allreduce.nodes True given"),
        ("nodes = 2", "nodes = 5", "line 15: allreduce.nodes 5 given, expected at most 4, the ranks"),
        ("nodes = 2\n", "", "line 13: allreduce.nodes missing"),
        ("nodes = 2", "nods = 2", "line 15: allreduce.nods unknown, expected ranks, nodes, bytes"),
        (
            '"two_level"',
            '"to_level"',
            "line 17: allreduce.algorithm 'to_level': allreduce: unknown algorithm",
        ),
        ('"ring"', '"recursive_doubling"\nparameters = {chunks = 2}', "line 11: allreduce.algorithm"),
        ('"ring"', '"direct_gather"', None),
        ("4096]\nalgorithm", "9000000]\nalgorithm", None),
        ('"shared"', '"pigeon"', "line 18: allreduce.transport 'pigeon' given, expected message or shared"),
        ("leaders = 1", "leaders = 1.5", "line 19: allreduce.parameters {'leaders': 1.5"),
        ("leaders = 1", "bosses = 1", "line 17: allreduce.algorithm 'two_level': allreduce:"),
        ("recursive_doubling", "ringg", "line 17: allreduce.algorithm 'two_level': allreduce: unknown"),
        (
            '"native"',
            '"native"\nparameters = {chunks = 2}',
            "line 25: bcast.algorithm 'native': chunks given",
        ),
    ],
)
def test_bad_tables_are_refused_with_line_and_field(old, new, message):
    assert old in TABLE
    text = TABLE.replace(old, new, 1)
    if message is None:
        tuning.parse(text, "table.toml")
        return
    with pytest.raises(ValueError, match=r"^table.toml: ") as caught:
        tuning.parse(text, "table.toml")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_algorithm_with_a_limit_is_not_for_longer_vectors():
    text = TABLE.replace('[1, 4096]\nalgorithm = "ring"', '[1, 99999999]\nalgorithm = "direct_gather"')
    with pytest.raises(ValueError, match=r"line 11: allreduce.algorithm 'direct_gather': .* takes at most"):
        tuning.parse(text, "table.toml")


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ValueError, match=r"nothing.toml: No such file"):
        tuning.read(str(tmp_path / "nothing.toml"))
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"bytes: not a text file"):
        tuning.read(str(tmp_path / "bytes"))
    (tmp_path / "table.toml").write_text(TABLE)
    assert tuning.read(str(tmp_path / "table.toml")) == TABLE


def test_the_environment_may_name_a_table(monkeypatch):
    monkeypatch.setenv("MPICOLL_TUNING", "some/table.toml")
    assert environment()["MPICOLL_TUNING"] == "some/table.toml"
    check_environment(environment())
