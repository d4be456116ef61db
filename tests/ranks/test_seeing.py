"""Reports about ranks: the output of `mpgluon.info` and the merged trace of all ranks."""

import json
import os
import re

import launching
import pytest

pytestmark = pytest.mark.skipif(launching.MISSING is not None, reason=str(launching.MISSING))


def test_info_measures_links_between_ranks():
    done = launching.run(2, "-m", "mpgluon.info")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("NumPy") == 1  # rank 0 alone prints
    (title,) = re.findall(r"ranks +2 on 1 host; CPU memory is sent with (.+)", done.stdout)
    assert "MPI" in title
    links = re.findall(r"([0-9.]+) us, ([0-9.]+) GB/s", done.stdout)
    assert len(links) == 2
    assert all(0 < float(latency) < 1e5 and 0 < float(rate) < 1e3 for latency, rate in links)


def test_trace_merges_events_of_all_ranks(tmp_path):
    path = tmp_path / "trace.json"
    done = launching.run(2, os.path.join(launching.SCRIPTS, "seeing.py"), str(path))
    assert done.returncode == 0 and "rank 1 done" in done.stdout, done.stdout + done.stderr
    assert done.stdout.count("HybridSequential 'hybridsequential0':") == 1  # only rank 0 prints it
    events = json.loads(path.read_text())["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names[0].startswith("rank 0 on ") and names[1].startswith("rank 1 on ")
    rows = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    ran = {}
    for event in events:
        if event["ph"] == "X":
            ran.setdefault(event["name"], []).append(event)
    # Each device's work appears once, in the process of the device's rank
    assert [rows[e["pid"], e["tid"]] for e in sorted(ran["dot"], key=lambda e: e["ts"])] == [
        "cpu(0, rank=0)",
        "cpu(0, rank=1)",
    ] * 2
    assert {(e["pid"], e["name"]) for e in events if e["name"].startswith("task")} == {
        (0, "task of 0"),
        (1, "task of 1"),
    }
    # Each send precedes the product that reads its data, and has an arrow to the other process
    dots, sends = (sorted(ran[name], key=lambda e: e["ts"]) for name in ("dot", "send"))
    assert len(sends) == 4 and all(e["args"]["bytes"] == 256 for e in sends)
    for sent, product in zip(sends, dots[1:]):
        assert sent["pid"] != product["pid"] and sent["ts"] <= product["ts"] + 1000
    arrows = {}
    for event in events:
        if event["ph"] in "sf":
            arrows.setdefault(event["id"], {})[event["ph"]] = event["pid"]
    crossing = [arrow for arrow in arrows.values() if arrow["s"] != arrow["f"]]
    assert len(crossing) == 4 and all(set(arrow) == {"s", "f"} for arrow in arrows.values())


@pytest.mark.slow
def test_polling_rank_wakes_up_rarely_while_devices_compute():
    """Each poll takes microseconds from the core on which the device computes. 4,000 to 8,000 polls
    a second took a quarter of the core."""
    done = launching.run(2, os.path.join(launching.SCRIPTS, "looking.py"))
    found = dict(re.findall(r"rank (\d): (\d+) a second", done.stdout))
    assert done.returncode == 0 and set(found) == {"0", "1"}, done.stdout + done.stderr
    assert all(int(rate) < 2000 for rate in found.values()), found
