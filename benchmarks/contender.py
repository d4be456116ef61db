"""The measured processes."""

import json
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def environment():
    """Returns the environment of a process that runs a module of this folder from any working
    directory. Modules in that directory, for instance the sources of mpgluon, are not imported."""
    paths = [HERE, *filter(None, [os.environ.get("PYTHONPATH")])]
    return dict(os.environ, PYTHONPATH=os.pathsep.join(paths), PYTHONSAFEPATH="1")


class Contender:
    """A process of serve.py. `version` is None if the library is not installed."""

    def __init__(self, library, threads, python, module):
        self.library, self.threads = library, threads
        counts = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        self.process = subprocess.Popen(
            [python, "-m", module, str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=dict(environment(), **counts),
        )
        ready = self.process.stdout.readline().strip()
        self.version = json.loads(ready) if ready else None

    def ask(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.library}, {self.threads} threads: died at {request}")
        return json.loads(line)

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def libraries(mxnet_python):
    """Returns (name, interpreter, module) of each contender, mpgluon first."""
    found = [
        ("mpgluon", sys.executable, "work_mpgluon"),
        ("PyTorch", sys.executable, "work_pytorch"),
    ]
    if mxnet_python:
        found.append(("MXNet", mxnet_python, "work_mxnet"))
    return found
