"""Algorithms in a folder of the user's own."""

import os
import subprocess
import sys
import textwrap

import pytest

OWN = """
    from mpicoll.schedule import algorithm

    @algorithm("reduce", name="{name}", chunks=1, steps="p-1", sent="1", source="nobody")
    def towards_zero(rank, size, root=0):
        yield from ()
"""


def known(folder):
    """Import the algorithms in a fresh process; give the names, and what it says on stderr."""
    program = "from mpicoll.schedule import algorithms; print(*(a.name for a in algorithms('reduce')))"
    environment = os.environ | {"MPICOLL_ALGORITHMS": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    return done.stdout.split(), done.stderr


@pytest.mark.parametrize("file", ["chain.py", "tree.py", "mine.py"])
def test_a_file_may_be_called_as_one_of_ours(tmp_path, file):
    (tmp_path / file).write_text(textwrap.dedent(OWN.format(name="mine")))
    names, _ = known(tmp_path)
    assert {"mine", "binary_tree", "binomial"} <= set(names)


def test_a_name_that_is_taken_is_refused(tmp_path):
    (tmp_path / "mine.py").write_text(textwrap.dedent(OWN.format(name="binomial")))
    names, said = known(tmp_path)
    assert names == []
    assert "reduce: an algorithm binomial is registered already, by mpicoll.algorithms.binomial" in said


def test_a_folder_that_is_not_there_is_named(tmp_path):
    names, said = known(tmp_path / "nowhere")
    assert "binomial" in names
    assert f"MPICOLL_ALGORITHMS: {tmp_path / 'nowhere'} is not a folder" in said
