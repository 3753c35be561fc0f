"""mpicoll: collective communication on MPI that can be seen, proved, run, modelled and tuned."""

__version__ = "0.1.0"
