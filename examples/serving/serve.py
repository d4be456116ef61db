"""Serves a network on several devices over HTTP: requests are batched, and batches are pipelined
over its stages.

    python serve.py                                      # cpu(0) and cpu(1), on port 3000
    python serve.py --devices "gpu(0)" "gpu(1)"
    curl -X POST localhost:3000/classify -H "Content-Type: application/json" \
        -d "{\"pictures\": [[$(seq -s, 1 64)]]}"

The first start trains the network and stores its parameters. Ctrl-C or SIGTERM ends the server
after all accepted requests are answered. The service is in service.py, the network in model.py;
load.py measures it.
"""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))

import model  # noqa: E402

from common import device as device, output, parser  # noqa: E402


def environment(parameters: str, devices: str) -> dict[str, str]:
    """Returns the environment of the service's process. `devices` has names separated by spaces, or
    is 'torch'."""
    paths = [HERE, os.path.dirname(HERE), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "BENTOML_DO_NOT_TRACK": "True",
        "SERVED_PARAMETERS": os.path.abspath(parameters),
        "SERVED_DEVICES": devices,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }


def command(port: int) -> list[str]:
    where = ["--host", "127.0.0.1", "--port", str(port), "--working-dir", HERE]
    return [sys.executable, "-m", "bentoml", "serve", "service:Classifier", *where]


def main() -> None:
    arguments = parser(__doc__, devices=2, steps=60)
    arguments.add_argument("--port", type=int, default=3000)
    options = arguments.parse_args()
    params = output(options, "served.params")
    if not os.path.exists(params):
        right = model.train(params, options.devices, options.steps)
        print(f"trained: {right:.1%} of new pictures right; {os.path.abspath(params)}")
    names = " ".join(map(str, options.devices))
    told = environment(params, names)
    print(f"{names}: http://127.0.0.1:{options.port}/classify", flush=True)
    os.chdir(HERE)  # Python imports from its start folder, which may be mpgluon's unbuilt sources
    os.execve(sys.executable, command(options.port), told)


if __name__ == "__main__":
    main()
