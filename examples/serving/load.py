"""Load test of the service: its throughput, its latency, and its behavior under overload.

    python load.py                            # two devices, one device, PyTorch, and overload

The servers take turns, so that other load on the machine affects all of them. Every answer is
compared with the network's result.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))

import model  # noqa: E402

import serve  # noqa: E402
from common import output, parser, print_table  # noqa: E402
from mpgluon import nd  # noqa: E402

ROWS = 4  # per request


@dataclass
class Seen:
    """Results of the clients: seconds of the answered requests, and counts of statuses."""

    seconds: list[float] = field(default_factory=list)
    statuses: collections.Counter[object] = field(default_factory=collections.Counter)
    wrong: int = 0
    elapsed: float = 0.0

    def row(self) -> tuple[str, ...]:
        p50, p99 = np.percentile(np.array(self.seconds) * 1e3, [50, 99])
        rate = len(self.seconds) / self.elapsed
        refused = self.statuses[503] / max(1, sum(self.statuses.values()))
        return f"{rate:.0f}", f"{rate * ROWS:.0f}", f"{p50:.1f}", f"{p99:.1f}", f"{refused:.0%}"


class Requests:
    """Request bodies and their expected scores."""

    def __init__(self, params: str, count: int = 64) -> None:
        net = model.network()
        net.load_parameters(params)
        rows, _ = model.pictures(count * ROWS, seed=7)
        self.scores = net(nd.array(rows)).asnumpy().reshape(count, ROWS, -1)
        parts = rows.reshape(count, ROWS, -1)
        self.bodies = [json.dumps({"pictures": part.tolist()}).encode() for part in parts]


async def _client(
    session: Any, url: str, requests: Requests, seen: Seen, until: float, first: int
) -> None:
    number = first
    while time.perf_counter() < until:
        body = requests.bodies[number % len(requests.bodies)]
        begin = time.perf_counter()
        try:
            async with session.post(url, data=body) as answer:
                status: object = answer.status
                scores = await answer.json() if answer.status == 200 else None
        except (aiohttp.ClientError, asyncio.TimeoutError) as error:
            seen.statuses[type(error).__name__] += 1
            return
        seen.statuses[status] += 1
        if scores is not None:
            seen.seconds.append(time.perf_counter() - begin)
            expected = requests.scores[number % len(requests.bodies)]
            seen.wrong += not np.allclose(scores, expected, rtol=1e-3, atol=1e-2)
        elif status == 503:
            await asyncio.sleep(0.25)  # retries later
        number += 1


async def clients(url: str, requests: Requests, count: int, seconds: float) -> Seen:
    """Runs `count` clients, each of which sends its next request after the last answer."""
    seen, begin = Seen(), time.perf_counter()
    limits = aiohttp.TCPConnector(limit=0)
    headers, wait = {"Content-Type": "application/json"}, aiohttp.ClientTimeout(60)
    async with aiohttp.ClientSession(connector=limits, headers=headers, timeout=wait) as session:
        until = begin + seconds
        await asyncio.gather(
            *[_client(session, url, requests, seen, until, i * 5) for i in range(count)]
        )
    seen.elapsed = time.perf_counter() - begin
    return seen


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextlib.contextmanager
def server(params: str, devices: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Yields the address and process of a ready server, which is terminated afterwards."""
    port = free_port()
    told = serve.environment(params, devices)
    told["BENTOML_CONFIG_OPTIONS"] = "api_server.logging.access.enabled=false"
    process = subprocess.Popen(
        serve.command(port),
        env=told,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=HERE,
    )
    address = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 60
        while True:
            if process.poll() is not None:
                raise RuntimeError(f"the server for {devices} ended: {process.returncode}")
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{address}/readyz", timeout=2).close()
                break
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"the server for {devices} is not ready after a minute; serve.py shows what it "
                    "prints"
                )
            time.sleep(0.1)
        yield f"{address}/classify", process
    finally:
        process.terminate()
        process.wait(60)


def main() -> None:
    arguments = parser(__doc__, devices=2, steps=60)
    arguments.add_argument("--clients", type=int, default=16)
    arguments.add_argument("--seconds", type=float, default=4, help="of each turn")
    arguments.add_argument("--turns", type=int, default=3)
    arguments.add_argument("--overload", type=int, default=400, help="clients that are too many")
    options = arguments.parse_args()
    params = output(options, "served.params")
    if not os.path.exists(params):
        model.train(params, options.devices, options.steps)
    requests = Requests(params)
    names = " ".join(map(str, options.devices))
    ways = {f"{names}, pipelined": names, "one device": names.split()[0]}
    if importlib.util.find_spec("torch"):
        ways["PyTorch"] = "torch"
    else:
        print("without PyTorch, which is not installed")
    results: dict[str, list[Seen]] = {name: [] for name in ways}
    with contextlib.ExitStack() as stack:
        urls = {name: stack.enter_context(server(params, way))[0] for name, way in ways.items()}
        for turn in range(options.turns + 1):
            for name, url in urls.items():
                seen = asyncio.run(clients(url, requests, options.clients, options.seconds))
                if turn:  # the first turn is a warm-up in which batch sizes adapt
                    results[name].append(seen)
        url = urls[f"{names}, pipelined"]
        crowd = asyncio.run(clients(url, requests, options.overload, options.seconds))
    best = {name: max(seen, key=lambda one: len(one.seconds)) for name, seen in results.items()}
    head = ("", "requests/s", "rows/s", "p50 ms", "p99 ms", "answered with 503")
    rows = [(name, *seen.row()) for name, seen in best.items()]
    print_table(head, *rows, (f"{options.overload} clients, pipelined", *crowd.row()))
    everything = [crowd, *(one for seen in results.values() for one in seen)]
    lost = sum(
        count
        for one in everything
        for status, count in one.statuses.items()
        if status not in (200, 503)
    )
    print(f"wrong answers: {sum(one.wrong for one in everything)}, requests lost: {lost}")


if __name__ == "__main__":
    main()
