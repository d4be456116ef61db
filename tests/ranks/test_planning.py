"""Plans for devices of several ranks."""

import json
import os

import launching
import pytest

pytestmark = pytest.mark.skipif(launching.MISSING is not None, reason=str(launching.MISSING))
SCRIPT = os.path.join(launching.SCRIPTS, "planned.py")


@pytest.mark.slow
def test_both_ranks_get_the_same_plan():
    done = launching.run(2, SCRIPT)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"rank')]
    first, second = sorted(lines, key=lambda line: line.pop("rank"))
    assert first == second
    assert first["losses"][1] < first["losses"][0]
