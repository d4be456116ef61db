"""The results of a check as Markdown."""

import re


def count(text):
    """Returns counts of test outcomes in the output of pytest -v, complete or not, and the names of
    the failed tests."""
    ended = re.findall(r"^(\S+::.*?) (PASSED|FAILED|ERROR|SKIPPED|XFAIL)\b", text, re.M)
    counts = {
        key: sum(1 for _, how in ended if how == how_said)
        for key, how_said in (
            ("passed", "PASSED"),
            ("failed", "FAILED"),
            ("errors", "ERROR"),
            ("skipped", "SKIPPED"),
        )
    }
    return counts, [name for name, how in ended if how in ("FAILED", "ERROR")]


def unfinished(text):
    last = text.strip().splitlines()[-1] if text.strip() else ""
    return last[:200]


def report(results):
    """Yields Markdown lines."""
    machine, card = results["machine"], results["machine"].get("card")
    title = "GPU check" if results["do"] == "check" else "GPU suites"
    yield f"# {title} of {results['date']}\n"
    if results["tiny"]:
        yield "Tiny sizes, to try the check itself: the figures mean nothing.\n"
    yield (
        f"{card or 'no card'}; {machine.get('cores')} cores; Python {machine.get('python')}, NumPy "
        f"{machine.get('numpy')}, PyTorch {machine.get('torch')}.\n"
    )
    if results["package"]:
        yield from installed(results["package"])
    if results["cases"]:
        yield from measured(results["cases"])
    if results["suites"]:
        yield from suites(results["suites"].values())
    failed = {part: found for part, found in results["parts"].items() if not found["held"]}
    yield f"{len(results['parts']) - len(failed)} of {len(results['parts'])} parts held."
    for part, found in failed.items():
        yield f"\n## {part}, after {found['seconds']} s\n\n```\n{found['told'].strip()}\n```"


def installed(package):
    yield f"Installed from {package['from']}" + (f": {package['why']}." if package["why"] else ".")
    if package.get("carried"):
        yield f"Carried along: {', '.join(package['carried'])}."
    yield "\n```\n" + "\n".join(package.get("info", ["mpgluon.info did not run"])) + "\n```\n"


def measured(found):
    """Yields the table of the cases."""
    from on_gpu.cases import BY_NAME, CASES

    yield "| case | mpgluon | PyTorch | rate against it | wanted | of the product's rate |"
    yield "| --- | --- | --- | --- | --- | --- |"
    products = [line["seconds"] for line in found.get("product", {}).values() if "seconds" in line]
    peak = BY_NAME["product"].flops() / min(products) if products else 0
    for case in CASES:
        lines = found.get(case.name)
        if lines:
            other = found.get(case.against, {}).get("mpgluon", {})
            yield row(case, lines, other if case.against else lines.get("PyTorch", {}), peak)
    yield ""


def suites(found):
    """Yields the table of the tests, a line for each file and number of GPUs."""
    yield "| suite | GPUs | passed | failed | skipped |"
    yield "| --- | --- | --- | --- | --- |"
    sums = {}
    for suite in found:
        total = sums.setdefault((suite["file"], suite["gpus"]), [0, 0, 0])
        total[0] += suite["passed"]
        total[1] += suite["failed"] + suite["errors"]
        total[2] += suite["skipped"]
    for (name, gpus), total in sorted(sums.items()):
        yield f"| {name} | {gpus} | {total[0]} | {total[1]} | {total[2]} |"
    yield ""


def row(case, found, other, peak):
    ours, theirs = found.get("mpgluon", {}), found.get("PyTorch", {})
    ratio = other["seconds"] / ours["seconds"] if "seconds" in ours and "seconds" in other else None

    def rate(line):
        if "seconds" not in line:
            return "failed" if "error" in line else ""
        if case.items:
            return f"{case.items / line['seconds']:,.0f} {case.unit}"
        return f"{line['seconds'] * 1e3:.3f} ms"

    share = (
        f"{case.flops() / ours['seconds'] / peak:.0%}"
        if case.flops() and peak and "seconds" in ours
        else ""
    )
    told = "" if ratio is None else f"{ratio:.2f}x" + (" (of one GPU)" if case.against else "")
    wanted = (
        ""
        if case.wanted is None
        else f">= {case.wanted}"
        + ("" if ratio is None else ", holds" if ratio >= case.wanted else ", MISSED")
    )
    return f"| {case.title} | {rate(ours)} | {rate(theirs)} | {told} | {wanted} | {share} |"
