"""Tables of the measurements. `figures` is the JSON that bench.py writes; see there."""

from cases import BY_NAME, CASES, PEAK

OURS = "mpgluon"


def rate(case, seconds):
    if not seconds:
        return ""
    if case.items:
        value = case.items / seconds
        return f"{value:,.1f} {case.unit}" if value < 1000 else f"{value:,.0f} {case.unit}"
    return f"{seconds * 1e6:,.2f} us" if seconds < 1e-3 else f"{seconds * 1e3:,.2f} ms"


def peak(row, devices=1):
    """Returns the peak floating-point operations per second of any library's large product during
    this case."""
    return BY_NAME[PEAK].flops / min(row["peak"].values()) * devices if row.get("peak") else 0


def speed_table(figures, threads):
    libraries = figures["libraries"]
    count = str(threads)
    yield "| case | " + " | ".join(libraries) + " | of the peak | rate, against the better peer |"
    yield "| --- |" + " --- |" * (len(libraries) + 2)
    for case in CASES:
        row = figures["cases"].get(case.name, {}).get(count)
        if not row:
            continue
        seconds = row["seconds"]
        ours = seconds.get(OURS)
        peers = [s for library, s in seconds.items() if library != OURS]
        share = ratio = ""
        if case.flops and ours:
            devices = 2 if case.against else 1
            share = f"{case.flops / ours / peak(row, devices):.0%}" if peak(row) else ""
        if ours and peers:
            ratio = f"{min(peers) / ours:.2f}x"
        elif ours and case.against:
            one = figures["cases"].get(case.against, {}).get(count, {}).get("seconds", {}).get(OURS)
            ratio = f"{one / ours:.2f}x one device" if one else ""
        yield (
            f"| {case.title} | "
            + " | ".join(
                [rate(case, seconds.get(library)) for library in libraries] + [share, ratio]
            )
            + " |"
        )


def memory_table(figures):
    libraries = figures["libraries"]
    yield "| case | " + " | ".join(libraries) + " | ours, by the pools |"
    yield "| --- |" + " --- |" * (len(libraries) + 1)
    for case in CASES:
        row = figures["memory"].get(case.name)
        if row:
            cells = [
                f"{(row[lib]['peak'] - row[lib]['imported']) / 2**20:,.0f} MiB"
                if lib in row
                else ""
                for lib in libraries
            ]
            pools = row.get(OURS, {}).get("pools", 0)
            yield f"| {case.title} | " + " | ".join(cells) + f" | {pools / 2**20:,.0f} MiB |"


def tables(figures):
    """Yields Markdown as in docs/benchmarks.md."""
    counts = sorted({int(c) for rows in figures["cases"].values() for c in rows}, reverse=True)
    for threads in counts:
        peaks = [
            peak(rows[str(threads)]) for rows in figures["cases"].values() if str(threads) in rows
        ]
        yield (
            f"\n{threads} thread{'s' if threads > 1 else ''}; the peak is "
            f"{max(peaks, default=0) / 1e9:.0f} GFLOP/s:\n"
        )
        yield from speed_table(figures, threads)
    if figures["memory"]:
        yield "\nMost memory of training beyond the imported library's, 2 threads:\n"
        yield from memory_table(figures)
