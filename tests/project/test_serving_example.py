"""examples/serving: concurrent clients, bad requests, overload and shutdown."""

import asyncio
import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request

import pytest

from support.paths import ROOT
from support.processes import PACKAGE

pytestmark = pytest.mark.slow
MISSING = "needs BentoML: pip install -r examples/serving/requirements.txt"
pytest.importorskip("bentoml", reason=MISSING)
aiohttp = pytest.importorskip("aiohttp", reason=MISSING)

FOLDER = os.path.join(ROOT, "examples", "serving")
NAMES = ("load", "serve", "model", "common")
DEVICES = "cpu(0) cpu(1)"


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    """Returns the example's module `load` with trained parameters in `params`."""
    patch = pytest.MonkeyPatch()
    patch.syspath_prepend(os.path.dirname(FOLDER))
    patch.syspath_prepend(FOLDER)
    patch.setenv("PYTHONPATH", PACKAGE)
    module = importlib.import_module("load")
    module.params = str(tmp_path_factory.mktemp("serving") / "served.params")
    devices = [module.serve.device(name) for name in DEVICES.split()]
    assert module.model.train(module.params, devices, 15) > 0.5
    yield module
    patch.undo()
    for name in NAMES:
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def server(load):
    with load.server(load.params, DEVICES) as (url, _):
        yield url


async def posted(url, *bodies):
    """Posts all bodies concurrently; returns (status, answer) of each."""
    headers = {"Content-Type": "application/json"}
    async with aiohttp.ClientSession(headers=headers) as session:

        async def one(body):
            async with session.post(url, data=body) as answer:
                return answer.status, await answer.json()

        return await asyncio.gather(*map(one, bodies))


def test_server_answers_concurrent_clients(load, server):
    seen = asyncio.run(load.clients(server, load.Requests(load.params), 12, 3.0))
    assert seen.statuses[200] > 20 and not seen.wrong
    assert set(seen.statuses) <= {200, 503}


def test_bad_requests_are_rejected_without_affecting_others(load, server):
    good = load.Requests(load.params, 3).bodies
    row = [0.0] * load.model.INPUTS
    bad = [
        b"nonsense",
        json.dumps({"images": [row]}),
        json.dumps({"pictures": [row[1:]]}),
        json.dumps({"pictures": [[row]]}),
        json.dumps({"pictures": []}),
        json.dumps({"pictures": [row] * 100}),
        json.dumps({"pictures": [row[1:] + ["a"]]}),
        json.dumps({"pictures": [row[1:] + [float("nan")]]}),
    ]
    answers = asyncio.run(posted(server, *good, *bad))
    statuses = [status for status, _ in answers]
    assert statuses == [200] * len(good) + [400] * len(bad)
    assert "1 to 64 rows of 64 numbers" in json.dumps(answers[5])


def test_overload_is_answered_with_503(load, server):
    requests = load.Requests(load.params)
    seen = asyncio.run(load.clients(server, requests, 500, 4.0))
    assert set(seen.statuses) == {200, 503} and not seen.wrong
    after = asyncio.run(load.clients(server, requests, 2, 1.0))
    assert set(after.statuses) == {200}


def test_server_starts_in_the_source_folder(load):
    """There, Python finds the unbuilt package first."""
    port = load.free_port()
    command = [sys.executable, os.path.join(FOLDER, "serve.py"), "--port", str(port)]
    process = subprocess.Popen([*command, "--out", os.path.dirname(load.params)], cwd=ROOT)
    try:
        for _ in range(300):
            assert process.poll() is None
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2).close()
                break
            time.sleep(0.2)
        else:
            raise AssertionError("it is not ready")
    finally:
        process.terminate()
        assert process.wait(60) == 0


def test_shutdown_answers_accepted_requests(load):
    bodies = load.Requests(load.params, 24).bodies
    with load.server(load.params, DEVICES) as (url, process):

        async def told_to_end():
            await asyncio.sleep(0.1)
            process.send_signal(signal.SIGTERM)

        async def both():
            answers, _ = await asyncio.gather(posted(url, *bodies), told_to_end())
            return answers

        statuses = {status for status, _ in asyncio.run(both())}
        assert statuses <= {200, 503} and 200 in statuses
        assert process.wait(60) == 0
