"""The stages of a compiled block: which segments of its programs belong to them, and how tables of actions become queued work."""

from . import schedules
from .schedules import Action, ScheduleError, StageGraph

SENDING = 1e-3  # of what a stage takes that computes


class Stages:
    """Stages of the pieces of a run.

    Parameters
    ----------
    forward, backward : list of dict
        For each piece, its programs as `PieceRun.describe` gives them; backward may be None.
    carried : bool
    """

    def __init__(self, forward, backward, carried):
        self.forward, self.backward = forward, backward
        pieces = [self._stages_of(f["segments"], b["segments"] if b else None) for f, b in zip(forward, backward or [None] * len(forward))]
        first = pieces[0]
        if any(p["devices"] != first["devices"] for p in pieces):
            raise ScheduleError("the micro-batches of this pipeline have different stages; give them the same size, or the same devices")
        self.contexts = first["contexts"]  # by number of device
        self.pieces = pieces
        self.names = first["names"]
        deferred = any(actions.get("W") for p in pieces for actions in p["segments"])
        # What one micro-batch needs, the table has all wait for: the first and the last of a sequence have fewer gradients.
        sources = [sorted({t for p in pieces for t in p["sources"][s]}) for s in range(len(first["devices"]))]
        backward_sources = backward and [sorted({t for p in pieces for t in p["backward_sources"][s]}) for s in range(len(sources))]
        self.weights = self._weights(deferred)
        senders = [s for s in range(len(sources)) if backward and self.weights["F", s] == SENDING and not self.weights["B", s] and not self.weights["W", s]]
        self.graph = StageGraph(first["devices"], sources, deferred, carried, backward_sources or None, senders)

    def _weights(self, deferred):
        """(kind, stage) -> what an action is taken to last, of stages that are equally heavy: those that only send take next to nothing."""
        weights = {}
        for s in range(len(self.pieces[0]["segments"])):
            own = dict.fromkeys("FBW", 0)
            for k, piece in enumerate(self.pieces):
                for kind in "FBW" if self.backward else "F":
                    described = (self.forward if kind == "F" else self.backward)[k]["segments"]
                    for i in piece["segments"][s][kind]:
                        own[kind] = max(own[kind], 1 if len(described[i]["ops"]) > described[i]["copies"] else SENDING)
            weights["F", s] = own["F"]
            weights["B", s] = own["B"] if deferred else 2 * own["B"]
            weights["W", s] = own["W"] if own["B"] else 2 * own["W"]  # all of the backward pass, where no one waits for gradients
        return weights

    def placement(self):
        """The device of each stage."""
        return [self.contexts[d] for d in self.graph.devices]

    def _stages_of(self, forward, backward):
        contexts = []
        for segment in forward:
            if segment["device"] not in contexts and segment["ops"]:
                contexts.append(segment["device"])
        for segment in [*forward, *(backward or [])]:
            if segment["device"] not in contexts:
                contexts.append(segment["device"])
        stages = [i for i, s in enumerate(forward) if s["ops"]]
        number = {segment: n for n, segment in enumerate(stages)}
        devices = [contexts.index(forward[i]["device"]) for i in stages]
        sources = [[number[w] for w in forward[i]["waits"] if w in number] for i in stages]
        segments = [{"F": [i], "B": [], "W": []} for i in stages]
        # Where a stage only receives (a result that is moved): behind everything.
        arrivals = {"F": [i for i, s in enumerate(forward) if not s["ops"]], "B": []}
        backward_sources, pushes = None, {}
        if backward is not None:
            owner, early = self._owners(forward, backward, stages, contexts)
            for i in early:  # queued with the first that waits for it
                user = next((owner[j] for j, s in enumerate(backward) if i in s["waits"] and j in owner), None)
                if user is None:
                    arrivals["B"].append(i)
                else:
                    pushes.setdefault(user, []).append(i)
            for i, segment in enumerate(backward):
                if not segment["ops"]:
                    arrivals["B"].append(i)
                elif i in owner:
                    segments[owner[i]]["W" if segment["deferred"] else "B"].append(i)
            backward_sources = [[] for _ in stages]
            for i, segment in enumerate(backward):
                if i in owner:
                    backward_sources[owner[i]] += [owner[w] for w in segment["waits"] if w in owner and owner[w] != owner[i]]
        names = [_name_of(forward[i]["ops"]) for i in stages]
        return {
            "devices": devices, "sources": sources, "segments": segments, "arrivals": arrivals, "contexts": contexts, "names": names,
            "backward_sources": backward_sources, "pushes": pushes,
        }  # fmt: skip

    def _owners(self, forward, backward, stages, contexts):
        """The stage that each segment of the backward belongs to: on each device, the last for the first, and so on.

        And those that belong to none: where a result was moved, its gradient is moved back ahead of the device's stages.
        """
        owner, early = {}, []
        for ctx in contexts:
            own = [n for n, i in enumerate(stages) if forward[i]["device"] == ctx]
            at = [i for i, s in enumerate(backward) if s["device"] == ctx and s["ops"]]
            depths = sorted({backward[i]["depth"] for i in at})
            while len(depths) > len(own) and at and not backward[at[0]]["waits"] and backward[at[0]]["copies"]:
                # There may be more in it than moves: zeros, for results without a gradient.
                early.append(at.pop(0))
                depths = sorted({backward[i]["depth"] for i in at})
            if at and not own:
                raise ScheduleError(f"{ctx} has work in the backward pass of this pipeline, but no stage")
            for i in at:
                owner[i] = own[max(len(own) - 1 - depths.index(backward[i]["depth"]), 0)]
        return owner, early

    def __len__(self):
        return len(self.graph)

    def table(self, schedule, micro_batches, phases, times=None):
        """The table of a named schedule or of a user's table, checked."""
        graph = self.graph
        if isinstance(schedule, str):
            return schedules.make_table(graph, micro_batches, "1f1b" if schedule == "auto" else schedule, times or self.weights, phases)
        kinds = {"F", "B", "W"} if phases == "FB" else set("BW" if phases == "B" else "F")
        table = schedules.parse_table(schedule, graph)
        schedules.verify(table, graph, micro_batches, "FB")
        return [[a for a in row if a.kind in kinds] for row in table]

    def items(self, table, micro_batches, phases):
        """The segments to queue, as numbers: phase, piece, segment, stage, phase, ..."""
        numbers = []
        schedules.verify(table, self.graph, micro_batches, phases)
        # In the order in which actions begin on paper, so that memory goes on from what ends early to what begins late.
        spans = schedules.simulate(table, self.graph, micro_batches, self.weights, phases).spans
        for action in sorted(spans, key=lambda a: (spans[a][0], self.graph.devices[a.stage])):
            phase = 0 if action.kind == "F" else 1
            if action.kind == "B":
                for segment in self.pieces[action.micro_batch]["pushes"].get(action.stage, ()):
                    numbers += [1, action.micro_batch, segment, action.stage]
            for segment in self.pieces[action.micro_batch]["segments"][action.stage][action.kind]:
                numbers += [phase, action.micro_batch, segment, action.stage]
        for piece in range(micro_batches):
            for phase, kind in enumerate("FB"):
                if kind in phases:
                    for segment in self.pieces[piece]["arrivals"][kind]:
                        numbers += [phase, piece, segment, 0 if phase else len(self) - 1]
        return numbers

    def bytes_of(self, schedule, micro_batches, times):
        """The most bytes on each device with the table that a schedule makes of such times (`peaks`)."""
        own, self.weights = self.weights, {**self.weights, **times}
        try:
            return self.peaks(self.items(self.table(schedule, micro_batches, "FB"), micro_batches, "FB"), "FB")
        finally:
            self.weights = own

    def segments_of(self, action):
        """(phase, piece, segments) of an action."""
        return (0 if action.kind == "F" else 1), action.micro_batch, self.pieces[action.micro_batch]["segments"][action.stage][action.kind]

    def actions(self, micro_batches, phases):
        """The actions of a table: `F` (and `B`, `W`) of every stage and micro-batch, for the phases in `phases` (text of F and B)."""
        kinds = ["F"] * ("F" in phases) + (["B"] + ["W"] * self.graph.deferred) * ("B" in phases)
        return [Action(kind, s, m) for kind in kinds for s in range(len(self)) for m in range(micro_batches)]

    def peaks(self, items, phases, kept=False):
        """The most bytes that the blocks of all pieces take on each device, when items are queued in this order.

        A block is taken with the first segment that touches it and given back behind the last, unless all are ``kept`` for a backward to come; a lane is kept for other pieces.
        Weights packed for all pieces are there from the beginning to the end.
        """
        uses, sizes, held, spare = {}, {}, {}, {}
        for phase, described in enumerate((self.forward, self.backward)):
            if "FB"[phase] not in phases or described is None:
                continue
            for piece, programs in enumerate(described):
                for number, (ctx, size, lane) in enumerate(programs["blocks"]):
                    sizes[piece, number] = (ctx, size, lane)
                for segment in programs["segments"]:
                    for block in segment["blocks"]:
                        uses[piece, block] = uses.get((piece, block), 0) + 1
        now = {ctx: sum(size for piece in self.forward for device, size in piece["kept"] if device == ctx) for ctx in self.contexts}
        peaks = dict(now)
        for phase, piece, number, _ in zip(*[iter(items)] * 4):
            blocks = (self.forward, self.backward)[phase][piece]["segments"][number]["blocks"]
            for block in blocks:
                if (piece, block) not in held:
                    ctx, size, lane = sizes[piece, block]
                    held[piece, block] = True
                    if lane and spare.get((ctx, size), 0) > 1:  # the latest is left alone
                        spare[ctx, size] -= 1
                        continue
                    now[ctx] += size
                    peaks[ctx] = max(peaks[ctx], now[ctx])
            for block in blocks:
                uses[piece, block] -= 1
                if not uses[piece, block] and not kept:
                    ctx, size, lane = sizes[piece, block]
                    if lane:
                        spare[ctx, size] = spare.get((ctx, size), 0) + 1
                    else:
                        now[ctx] -= size
        return peaks

    def planned(self, piece):
        """Bytes that are planned on each device for one micro-batch: (forward, both passes, of these arriving from other devices)."""
        forward = self.forward[piece]["blocks"]
        both = (self.backward or self.forward)[piece]["blocks"]
        return {
            ctx: (
                sum(size for device, size, _ in forward if device == ctx),
                sum(size for device, size, _ in both if device == ctx),
                sum(size for device, size, lane in both if device == ctx and lane),
            )
            for ctx in self.contexts
        }

    def describe(self):
        """What each stage does for one micro-batch: a list of dicts of device, blocks, operators of each kind of action, copies and bytes sent."""
        piece, result = self.pieces[0], []
        for s, name in enumerate(self.names):
            row = {"device": str(self.contexts[self.graph.devices[s]]), "blocks": name, "copies": 0, "bytes_sent": 0}
            for kind, title in (("F", "forward"), ("B", "backward"), ("W", "deferred")):
                described = (self.forward if kind == "F" else self.backward or ({"segments": []},))[0]["segments"]
                segments = [described[i] for i in piece["segments"][s][kind]]
                row[title] = [op for segment in segments for op in segment["ops"] if not op.endswith("/_copyto")]
                row["copies"] += sum(segment["copies"] for segment in segments)
                row["bytes_sent"] += sum(segment["bytes_sent"] for segment in segments)
            result.append(row)
        return result

    def bytes_sent(self, phases):
        """Bytes that one step passes from device to device: (from, number of bytes) summed up."""
        total = {}
        for described, kind in ((self.forward, "F"), (self.backward, "B")):
            if kind in phases and described:
                for piece in described:
                    for segment in piece["segments"]:
                        total[segment["device"]] = total.get(segment["device"], 0) + segment["bytes_sent"]
        return total


def _name_of(ops):
    """The blocks of a stage, by their operators' paths: the smallest block they are all in, or the first and the last child of the whole."""
    paths = [path.split(".") for path, name in (op.rsplit("/", 1) for op in ops) if path and name != "_copyto"]
    inner = [path for path in paths if len(path) > 1] or paths
    if not inner:
        return ops[0].rsplit("/", 1)[-1]
    depth = 0
    while all(len(path) > depth and path[depth] == inner[0][depth] for path in inner):
        depth += 1
    if depth > 1 or len(inner[0]) <= depth:
        return ".".join(inner[0][:depth])
    first, last = (".".join(path[: depth + 1]) for path in (inner[0], inner[-1]))
    return first if first == last else f"{first} ... {last}"
