"""Emulate a cluster of hosts with slow links on one machine, and run an MPI program across it.

As root, in a Python environment with MPICH or Intel MPI::

    python benchmarks/emulated_cluster.py --hosts 4 --rate 200mbit -- python program.py
    python benchmarks/emulated_cluster.py --hosts 2 --ranks-per-host 4 -- python benchmarks/side_by_side.py

or from a program beside this one::

    from emulated_cluster import cluster

    with cluster(hosts=4, rate="200mbit") as hosts:
        hosts.run(["python", "program.py"], ranks_per_host=1, timeout=60)

Every host has a network and a host name of its own, so MPI finds as many nodes as there are hosts. Its one
link, eth0, leads to a bridge and carries at most the rate in each direction, by tc's token bucket filter.
Ranks of one host share memory, as they do on a node::

    host1 eth0 ---- host1 .--------. host3 ---- eth0 host3
                          | bridge |                          mpiexec runs where the bridge is
    host2 eth0 ---- host2 '--------' host4 ---- eth0 host4

The cores are the machine's, and all hosts share them: what is true of such a cluster is the time that links
take, as long as ranks do not wait for cores.

All of it lies in namespaces that have no names outside: the machine's own interfaces, addresses and mounts
are never touched. They live as long as one process, which reads from a pipe to this one. When this one ends,
even by SIGKILL, that process sees the pipe close and ends; then the kernel ends all that was started inside
and removes the rest: links, host names, files, shared memory. So nothing is left behind that a later run
would have to find. /run and /dev/shm are private and empty inside, and /etc/hosts is the cluster's.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpicoll import launch

MAX_HOSTS, MAX_RANKS_PER_HOST, MAX_RANKS = 64, 64, 256
MIN_RATE, MAX_RATE = 10**6, 10**11  # bits per second
PROGRAMS = ("ip", "tc", "unshare", "nsenter", "mount")  # of iproute2 and util-linux
NAMESPACES = ("--mount", "--net", "--uts", "--ipc")
SUBNET = "10.77.0"

# Runs as the first process of the namespaces; -x shows which command was refused. When it ends, the kernel
# ends all others. Links with room for 0.2 s do not lose packets where several hosts send to one.
BUILD = rf"""
hosts=$1 rate=$2 burst=$3
mount -t tmpfs tmpfs /var/run
mount -t tmpfs tmpfs /dev/shm
mkdir /var/run/netns /var/run/uts
echo bridge > /proc/sys/kernel/hostname
printf "127.0.0.1 localhost\n{SUBNET}.254 bridge\n" > /var/run/hosts
cat > /var/run/enter <<'END'
#!/bin/sh
host=$1
shift
exec ip netns exec "$host" nsenter --uts="/var/run/uts/$host" sh -c "exec $*"
END
chmod +x /var/run/enter
ip link set lo up
ip link add bridge type bridge
ip address add {SUBNET}.254/24 dev bridge
ip link set bridge up
number=0
while [ $((number += 1)) -le "$hosts" ]
do
    host=host$number
    echo {SUBNET}.$number $host >> /var/run/hosts
    touch /var/run/netns/$host /var/run/uts/$host
    unshare --net=/var/run/netns/$host --uts=/var/run/uts/$host sh -c "echo $host > /proc/sys/kernel/hostname"
    ip link add $host type veth peer name eth0 netns $host
    ip -n $host address add {SUBNET}.$number/24 dev eth0
    ip -n $host link set lo up
    ip -n $host link set eth0 up
    ip netns exec $host sh -c "echo 0 > /proc/sys/net/ipv4/tcp_slow_start_after_idle"
    ip link set $host master bridge up
    tc -n $host qdisc add dev eth0 root tbf rate "$rate" burst "$burst" latency 200ms
    tc qdisc add dev $host root tbf rate "$rate" burst "$burst" latency 200ms
done
mount --bind /var/run/hosts /etc/hosts
echo ready
read -r _
"""

# Messages between hosts take TCP on eth0; those within one, the library's own way through shared memory.
TRANSPORT = {
    # MPICH
    "MPIR_CVAR_CH4_NETMOD": "ucx",
    "UCX_TLS": "tcp,self",
    "UCX_NET_DEVICES": "eth0",
    # Intel MPI
    "FI_PROVIDER": "tcp",
    "FI_TCP_IFACE": "eth0",
}


class UnavailableError(RuntimeError):
    """What the emulation needs is not here, or the kernel refused it."""


@dataclass(frozen=True)
class Cluster:
    """Hosts that are up; :func:`cluster` makes it.

    Attributes
    ----------
    hosts : int
        How many.
    process : subprocess.Popen
        The process that the namespaces live as long as.
    """

    hosts: int
    process: subprocess.Popen[str]

    def run(
        self,
        argv: Sequence[str],
        ranks_per_host: int = 1,
        *,
        timeout: float | None = None,
        prefix: str | os.PathLike[str] = sys.prefix,
        **options: Any,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program on all hosts, the first ranks on the first host, and wait for it.

        Parameters
        ----------
        argv : sequence of str
            The program that each rank runs, and its arguments. It is found on PATH, where the environment's
            own programs come first.
        ranks_per_host : int, optional
            Ranks on each host, 1 to 64; 256 on all hosts.
        timeout : float, optional
            Seconds after which the job is ended, and the cluster with it.
        prefix : path, optional
            The Python environment with the MPI library, see :func:`mpicoll.launch.mpiexec`.
        **options
            For :class:`subprocess.Popen`. Output is captured as text unless `stdout` or `stderr` says
            otherwise; variables in `env` are added to :func:`mpicoll.launch.environment`.

        Returns
        -------
        subprocess.CompletedProcess
            With the job's exit status, and what it printed where that is captured.

        Raises
        ------
        ValueError
            If there are too many ranks, or the cluster has ended.
        FileNotFoundError
            If there is no such program, or no launcher.
        UnavailableError
            If the launcher reaches hosts in its own ways only, unlike MPICH's.
        subprocess.TimeoutExpired
            If it takes longer than `timeout`.
        """
        check_ranks(self.hosts, ranks_per_host)
        if self.process.poll() is not None:
            raise ValueError("emulated_cluster: the cluster has ended, expected one that is up")
        path = os.pathsep.join([str(Path(prefix, "bin").absolute()), os.environ.get("PATH", os.defpath)])
        if shutil.which(argv[0], path=path) is None:
            raise FileNotFoundError(f"emulated_cluster: no program {argv[0]!r} on PATH")
        job = self._job(argv, ranks_per_host, prefix)
        env = launch.environment(self.hosts * ranks_per_host) | {"PATH": path}
        env |= (options.get("env") or {}) | TRANSPORT
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        options = streams | options | {"env": env}
        # Ctrl-C is for this process to handle, hence a session of its own.
        with subprocess.Popen(job, text=True, start_new_session=True, **options) as process:
            try:
                out, err = process.communicate(timeout=timeout)
            except BaseException:
                # Not by killing nsenter, for then nobody here would be left to collect its child.
                self.end()
                raise
        return subprocess.CompletedProcess(job, process.returncode, out, err)

    def end(self) -> None:
        """End the cluster and all that runs on it; wait until the processes are gone."""
        if self.process.returncode is None:
            self.process.communicate("end\n")

    def _job(self, argv: Sequence[str], ranks_per_host: int, prefix: str | os.PathLike[str]) -> list[str]:
        """Give the command that enters the namespaces and starts the ranks."""
        pid = self.process.pid
        # Only its child is in the new PID namespace, not the process itself.
        enter = ["nsenter", f"--target={pid}", *NAMESPACES, f"--pid=/proc/{pid}/ns/pid_for_children"]
        launcher = [find_launcher(prefix), "-launcher", "rsh", "-launcher-exec", "/var/run/enter"]
        hosts = ",".join(f"host{number + 1}" for number in range(self.hosts))
        ranks = ["-hosts", hosts, "-ppn", str(ranks_per_host), "-n", str(self.hosts * ranks_per_host)]
        return [*enter, *launcher, *ranks, "-wdir", os.getcwd(), *argv]


@contextmanager
def cluster(hosts: int, rate: str) -> Iterator[Cluster]:
    """Make a cluster that is there inside a ``with`` statement.

    Parameters
    ----------
    hosts : int
        Number of hosts, 1 to 64.
    rate : str
        What each host can send, and can receive, as tc writes it: ``"200mbit"``; 1mbit to 100gbit.

    Raises
    ------
    ValueError
        If `hosts` or `rate` is not in these bounds.
    UnavailableError
        If this is not root, iproute2 is not here, or the kernel refuses namespaces, links or limits.
    """
    check_hosts(hosts)
    bits = parse_rate(rate)
    check_requirements()
    found = Cluster(hosts, build(hosts, bits))
    try:
        wait_until_built(found.process)
        yield found
    finally:
        found.end()


def build(hosts: int, bits: int) -> subprocess.Popen[str]:
    """Start the process that makes the namespaces and what is in them."""
    unshare = ["unshare", *NAMESPACES, "--pid", "--fork", "--mount-proc"]
    return subprocess.Popen(
        [*unshare, "sh", "-exc", BUILD, "sh", str(hosts), f"{bits}bit", str(burst(bits))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"LC_ALL": "C", "PS4": "+ "},
        start_new_session=True,  # Ctrl-C is for this process to handle
    )


def wait_until_built(process: subprocess.Popen[str]) -> None:
    """Read what is said while it is built; raise UnavailableError if a command is refused, and which."""
    assert process.stdout is not None  # a pipe
    words: list[str] = []
    for line in map(str.strip, process.stdout):
        if line == "ready":
            return
        words = [line] if line.startswith("+ ") else [*words, line]
    raise UnavailableError(f"emulated_cluster: refused: {': '.join(words).removeprefix('+ ')}")


def find_launcher(prefix: str | os.PathLike[str]) -> str:
    """Find the environment's mpiexec; raise UnavailableError if it starts ranks in its own ways only."""
    launcher = launch.mpiexec(Path(prefix).absolute())  # as the job starts elsewhere
    answer = subprocess.run([launcher, "-help"], capture_output=True, text=True, timeout=60, check=False)
    if "-launcher-exec" not in answer.stdout:
        raise UnavailableError(
            f"emulated_cluster: needs an mpiexec with -launcher-exec, as MPICH's: {launcher}"
        )
    return launcher


def check_requirements() -> None:
    """Raise UnavailableError if this is not root, or a program is missing."""
    if os.geteuid() != 0:
        raise UnavailableError("emulated_cluster: needs root, to make network namespaces")
    if missing := [name for name in PROGRAMS if shutil.which(name) is None]:
        raise UnavailableError(
            f"emulated_cluster: needs iproute2 and util-linux, not on PATH: {', '.join(missing)}"
        )


def check_hosts(hosts: int) -> None:
    """Raise ValueError if there are too few hosts or too many."""
    if not 1 <= hosts <= MAX_HOSTS:
        raise ValueError(f"emulated_cluster: {hosts} hosts given, expected 1 to {MAX_HOSTS}")


def check_ranks(hosts: int, ranks_per_host: int) -> None:
    """Raise ValueError if there are too few ranks or too many."""
    if not 1 <= ranks_per_host <= MAX_RANKS_PER_HOST:
        raise ValueError(
            f"emulated_cluster: {ranks_per_host} ranks per host given, expected 1 to {MAX_RANKS_PER_HOST}"
        )
    if hosts * ranks_per_host > MAX_RANKS:
        raise ValueError(
            f"emulated_cluster: {hosts * ranks_per_host} ranks given, expected at most {MAX_RANKS}"
        )


def parse_rate(rate: str) -> int:
    """Read a rate as tc writes it, into bits per second.

    ``bit`` counts bits and ``bps`` bytes per second; k, m and g stand for powers of 1000, ki, mi and gi for
    powers of 1024.

    Raises
    ------
    ValueError
        If it is no such rate, or not from 1mbit to 100gbit.
    """
    found = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]+)?)([kmg]?)(i?)(bit|bps)", rate.lower())
    if not found or (found[3] and not found[2]):
        raise ValueError(f"emulated_cluster: rate {rate!r} given, expected one as 200mbit or 25mbps")
    number, prefix, binary, unit = found.groups()
    thousand = 1024 if binary else 1000
    bits = round(float(number) * thousand ** " kmg".index(prefix or " ") * (8 if unit == "bps" else 1))
    if not MIN_RATE <= bits <= MAX_RATE:
        raise ValueError(f"emulated_cluster: rate {rate!r} given, expected 1mbit to 100gbit")
    return bits


def burst(bits: int) -> int:
    """Give how many bytes may pass at once, for a rate in bits per second.

    That is what flows in a timer tick, 4 ms, since the bucket may be filled no more often; and no less than
    one packet as it is before the kernel cuts it into frames.
    """
    return max(bits // 8 // 250, 1 << 16)


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the options, run the job, and return its exit status."""
    options = read_options(arguments)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        check_ranks(options.hosts, options.ranks_per_host)
        with cluster(options.hosts, options.rate) as hosts:
            job = hosts.run(
                options.command,
                options.ranks_per_host,
                timeout=options.timeout,
                prefix=options.mpi,
                stdout=None,
                stderr=None,
            )
    except subprocess.TimeoutExpired:
        print(f"emulated_cluster: out of time after {options.timeout:g} s", file=sys.stderr)
        return 124
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except (UnavailableError, ValueError, FileNotFoundError) as error:
        print(error, file=sys.stderr)
        return 2
    return job.returncode if job.returncode >= 0 else 128 - job.returncode


def read_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0], epilog="exit status: the job's; 124: out of time"
    )
    parser.add_argument("--hosts", type=int, default=4, help="1 to 64 (default: %(default)s)")
    parser.add_argument("--ranks-per-host", type=int, default=1, help="1 to 64 (default: %(default)s)")
    parser.add_argument(
        "--rate",
        default="200mbit",
        help="of each link, in each direction, as tc has it (default: %(default)s)",
    )
    parser.add_argument("--timeout", type=float, metavar="SECONDS", help="end the job after these")
    parser.add_argument(
        "--mpi", default=sys.prefix, metavar="PREFIX", help="Python environment (default: this)"
    )
    parser.add_argument("command", nargs="+", metavar="COMMAND", help="after --; what each rank runs")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
