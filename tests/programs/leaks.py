"""Leaks of the core, detected by LeakSanitizer (see `make asan`).

Without arguments, uses the library in many ways and exits, which prints the report. With --judge,
reads a report and fails if a leak starts in the core's allocator; Python and its libraries also
leak.
"""

import gc
import re
import sys


def use():
    import os

    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # tests
    import numpy as np

    import mpgluon as mx
    from support import networks

    for kind in networks.NETS.values():
        for options in (None, {}, {"exact": True}):
            networks.train(kind, 3, "adam", options, steps=3)
    for wrong in (
        lambda: mx.nd.ones((2, 3)) + mx.nd.ones((4,)),
        lambda: mx.nd.dot(mx.nd.ones((2, 3)), mx.nd.ones((3, 2), ctx=mx.cpu(1))),
        lambda: mx.nd.load("/there/is/none"),
        lambda: mx.nd.take(mx.nd.ones((2,)), mx.nd.array([9]), mode="raise").asnumpy(),
        lambda: mx.nd.ones((2, 3)).reshape((7,)),
    ):
        try:
            wrong()
        except mx.MXNetError:
            continue
        except OSError:
            continue
        raise SystemExit("a mistake went unnoticed")
    np.asarray(mx.nd.ones((3,)))
    mx.nd.waitall()
    gc.collect()


def judge(report):
    records = [record for record in re.split(r"\n\s*\n", report) if " leak of " in record]
    ours = [record for record in records if re.search(r"#[1-4] .*[ /](csrc|kernels)/", record)]
    if "LeakSanitizer has encountered a fatal error" in report:
        print("LeakSanitizer cannot run here:\n" + report[-500:])
        return
    if "SUMMARY" not in report and records:
        raise SystemExit("the report is cut off:\n" + report[-2000:])
    if "Traceback" in report or "unnoticed" in report:
        raise SystemExit(report)
    if ours:
        raise SystemExit("the core leaks:\n\n" + "\n\n".join(ours))
    print(f"no leak of the core among {len(records)} reported")


if __name__ == "__main__":
    judge(sys.stdin.read()) if "--judge" in sys.argv else use()
