"""Draws the schedules of mpgluon.parallel.schedules as SVG, for docs/schedules.md.

    python tools/draw_schedules.py

Each image shows the result of ``schedules.simulate`` for the table of ``schedules.make_table``: a
forward pass of a device's layers lasts one unit of time, a backward pass two. The colors work on
light and dark pages.
"""

import os

from mpgluon.parallel import schedules

FOLDER = os.path.join(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "docs", "_static", "schedules"
)
UNIT, ROW, LEFT = 20, 24, 64  # pixels per unit of time, per device, and for device names
COLOURS = {"F": "#3b75af", "B": "#3f8f3f", "W": "#a7c796"}
INK = {"F": "#ffffff", "B": "#ffffff", "W": "#203020"}


def chain(devices, times=1, deferred=False):
    """Returns a chain of stages, distributed `times` times over the devices."""
    count = devices * times
    before = [[]] + [[i] for i in range(count - 1)]
    return schedules.StageGraph(list(range(devices)) * times, before, deferred=deferred)


# name: stages, number of micro-batches, name of the schedule
PICTURES = {
    "one_micro_batch": (chain(4), 1, "gpipe"),
    "gpipe": (chain(4), 8, "gpipe"),
    "1f1b": (chain(4), 8, "1f1b"),
    "interleaved": (chain(4, times=2), 8, "interleaved"),  # half-size stages
    "zero_bubble": (chain(4, deferred=True), 8, "zero_bubble"),
}


def simulated(name):
    """Returns the table of an image and its simulation."""
    stages, micro_batches, schedule = PICTURES[name]
    table = schedules.make_table(stages, micro_batches, schedule)
    share = stages.num_devices / len(stages)  # fraction of a device's layers per stage
    backward = 1.0 if stages.deferred else 2.0
    costs = {"F": share, "B": share * backward, "W": share}
    times = {(kind, stage): cost for kind, cost in costs.items() for stage in range(len(stages))}
    return table, schedules.simulate(table, stages, micro_batches, times)


def svg(name):
    """Returns the image as text."""
    stages, _, _ = PICTURES[name]
    table, simulation = simulated(name)
    width, height = LEFT + simulation.makespan * UNIT + 8, len(table) * ROW + 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}"'
        f' width="{width:g}" height="{height:g}" font-family="sans-serif" font-size="10">',
        f"<title>{name}: {simulation.makespan:g} units of time</title>",
    ]
    for device, row in enumerate(table):
        top = device * ROW + 4
        parts.append(f'<text x="4" y="{top + 15}" fill="#808080">device {device}</text>')
        parts.append(
            f'<rect x="{LEFT}" y="{top}" width="{simulation.makespan * UNIT:g}" height="{ROW - 4}"'
            ' fill="#808080" fill-opacity="0.15"/>'
        )
        for action in row:
            begin, end = simulation.spans[action]
            left, size = LEFT + begin * UNIT, (end - begin) * UNIT
            paler = (
                ' fill-opacity="0.7"' if action.stage >= stages.num_devices else ""
            )  # a second round
            parts.append(
                f'<rect x="{left + 0.5:g}" y="{top}" width="{size - 1:g}" height="{ROW - 4}"'
                f' fill="{COLOURS[action.kind]}"{paler}/>'
            )
            parts.append(
                f'<text x="{left + size / 2:g}" y="{top + 14}" text-anchor="middle"'
                f' fill="{INK[action.kind]}">{action.micro_batch}</text>'
            )
    return "\n".join([*parts, "</svg>", ""])


def main():
    os.makedirs(FOLDER, exist_ok=True)
    for name in PICTURES:
        with open(os.path.join(FOLDER, f"{name}.svg"), "w", encoding="utf-8") as file:
            file.write(svg(name))
        _, simulation = simulated(name)
        print(f"{name:16} {simulation.makespan:5g} units, idle {simulation.bubble:.0%}")


if __name__ == "__main__":
    main()
