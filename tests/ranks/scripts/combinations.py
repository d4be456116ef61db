"""Feature programs (`programs/feature_programs.py`) whose four stages are on devices of several
ranks. Each rank compares them with eager execution on one of its own devices.

    mpirun -n 2 python ranks/scripts/combinations.py 0/8 [seed]
    mpirun -n 2 python ranks/scripts/combinations.py '{"way": "hybridized", "count": "2"}'
    mpirun -n 2 python ranks/scripts/combinations.py refused

The first form runs a part of the programs that cover all pairs of values. The second form runs one
program. The third form runs the programs that raise an error over ranks. Each rank prints its
errors as one line of JSON.
"""

import json
import os
import sys
import warnings

import mpgluon as mx
from mpgluon import nd, parallel as par

# Import the package tests/programs instead of programs.py in this folder
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from programs.feature_programs import failure, possible
from programs.features.covering import cover
from programs.features.table import DEFAULTS, FACTORS, excluded, refused_on_ranks, refused_rows

SEED = 1
PLACED = {"placement": "ranks"}


def part_of(text, seed):
    """Returns the rows of a part, such as 0/8, all placed on the devices of ranks."""
    part, parts = map(int, text.split("/"))
    rows = [{**row, **PLACED} for row in cover(FACTORS, excluded, 2, seed)[0]]
    return [row for row in rows if possible(row) and not refused_on_ranks(row)][part::parts]


def errors(rows):
    """Returns the non-default values and the error of each row that fails on this rank. Stops early
    if the ranks cannot continue together."""
    found = []
    for row in rows:
        error = failure(row)
        if error is not None:
            chosen = {k: v for k, v in row.items() if v != DEFAULTS[k]}
            found.append([chosen, f"{type(error).__name__}: {error}"])
        try:
            nd.waitall()
            par.barrier()  # the program may have failed on some ranks only
        except mx.MXNetError as other:
            found.append([row, f"after this program: {other}"])
            break
    return found


warnings.simplefilter("ignore")
mx.context.set_threads(1)
first, *rest = sys.argv[1:]
if first == "refused":
    chosen = [{**DEFAULTS, **values} for values, _ in refused_rows()]
elif first.startswith("{"):
    chosen = [{**DEFAULTS, **PLACED, **json.loads(first)}]
else:
    chosen = part_of(first, int(rest[0]) if rest else SEED)
line = {"rank": par.rank(), "told": {"programs": len(chosen), "errors": errors(chosen)}}
# A single write that begins with a line break, so that lines of several ranks do not mix
sys.stdout.write("\n" + json.dumps(line) + "\n")
