"""Starts MPI on two ranks, of which rank 1 has a different setup, and prints the error of each.

mpirun -n 2 python beginnings.py version
"""

import atexit
import json
import os
import signal
import sys

HOW = sys.argv[1]
SECOND = "1" in (os.environ.get("OMPI_COMM_WORLD_RANK"), os.environ.get("PMI_RANK"))


def change():
    if HOW == "version":
        from mpgluon import libinfo

        libinfo.__version__ = "9.9"
    elif HOW == "threads":
        import mpi4py

        mpi4py.rc.thread_level = "serialized"
    elif HOW == "no_mpi":
        sys.modules["mpi4py"] = None
    elif HOW == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif HOW == "never_ends":  # after mpgluon's exit handlers, before mpi4py's
        atexit.register(os.kill, os.getpid(), signal.SIGSTOP)
    else:
        os.environ.update({"limit": {"MPGLUON_RANKS_TIMEOUT": "soon"}}.get(HOW, {}))
        os.environ.update({"limits": {"MPGLUON_RANKS_TIMEOUT": "7"}}.get(HOW, {}))
        os.environ.update({"order": {"MPGLUON_RANKS_SUMS": "mpi"}}.get(HOW, {}))


if SECOND:
    change()
import mpgluon as mx  # noqa: E402

try:
    mx.parallel.num_ranks()
    text = None
except (mx.MXNetError, ValueError) as error:
    text = str(error)
sys.stdout.write("\n" + json.dumps({"rank": int(SECOND), "told": text}) + "\n")
sys.stdout.flush()
if HOW == "no_mpi":
    sys.exit(1)  # as a script that does not catch the error
