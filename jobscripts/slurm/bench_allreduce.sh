#!/bin/bash
# Measure the all-reduce algorithms beside the MPI library's own on a cluster with Slurm:
#
#     sbatch jobscripts/slurm/bench_allreduce.sh
#
# Replace what is in <angle brackets>. Options of sbatch come first: sbatch --nodes=16 ...

#SBATCH --job-name=bench_allreduce
#SBATCH --account=<account>
#SBATCH --partition=<partition>
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=<cores of a node>
#SBATCH --exclusive                # or other people's jobs on the nodes are measured, too
#SBATCH --time=00:30:00
#SBATCH --output=bench_allreduce-%j.txt

set -euo pipefail

# The environment that mpicoll is installed in. Its mpi4py must use this cluster's MPI library to get at
# the network; `mpicoll info` says which one it uses.
export PATH="<environment>/bin:$PATH"

# How ranks find each other: pmi2 for MPICH and its relatives, pmix for Open MPI. `srun --mpi=list`
# names what this cluster has.
export SLURM_MPI_TYPE=pmi2

srun mpicoll info

# Compile on two ranks of one node first, so that all the others find the compiled code in the cache
# instead of compiling the same at once.
srun --nodes=1 --ntasks=2 mpicoll bench allreduce --sizes 8 --min-time 0.001 > /dev/null

# A core for each rank, for the whole run: ranks that move between cores lose what is in their caches.
srun --cpu-bind=cores mpicoll bench allreduce \
    --json "bench_allreduce-$SLURM_JOB_ID.jsonl" \
    --plot "bench_allreduce-$SLURM_JOB_ID.png"
