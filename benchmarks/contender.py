"""The processes that are measured."""

import json
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


class Contender:
    """A process of serve.py. `version` is None where the library is not installed."""

    def __init__(self, library, threads, python, script):
        self.library, self.threads = library, threads
        counts = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        self.process = subprocess.Popen(
            [python, os.path.join(HERE, script), str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=dict(os.environ, **counts),
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
    """(name, interpreter, script) of each contender; ours first."""
    found = [
        ("mpgluon", sys.executable, "work_mpgluon.py"),
        ("PyTorch", sys.executable, "work_pytorch.py"),
    ]
    if mxnet_python:
        found.append(("MXNet", mxnet_python, "work_mxnet.py"))
    return found
