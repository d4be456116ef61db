"""Converts float32 symbols to symbols with quantized (8-bit) layers."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from typing import NamedTuple

from .. import symbol as _symbol

__all__ = ["calibrate", "fold_batch_norms", "quantize"]


def _has(attrs, name, default=False):
    return str(attrs.get(name, default)) in ("True", "1")


class _Form(NamedTuple):
    """The quantized form of a float32 op."""

    name: str
    layer: bool = False  # True if all inputs except the first are parameters to quantize
    sums: bool = False  # True if the result is int32, which must be requantized to 8 bits
    known: bool = False  # needs its result's range in advance; only the first input is quantized
    fits: Callable[[dict], bool] = lambda attrs: True
    attrs: Callable[[dict], dict] = lambda attrs: attrs


_JOIN = _Form("_contrib_quantized_concat", fits=lambda attrs: int(attrs.get("dim", 1)) > 0)
_SUM = _Form("_contrib_quantized_elemwise_add", sums=True, attrs=lambda attrs: {})
FORMS = {
    "Convolution": _Form("_contrib_quantized_conv", layer=True, sums=True),
    "FullyConnected": _Form("_contrib_quantized_fully_connected", layer=True, sums=True),
    "Pooling": _Form(
        "_contrib_quantized_pooling",
        fits=lambda attrs: attrs.get("pool_type", "max") in ("max", "avg"),
    ),
    "Activation": _Form(
        "_contrib_quantized_act", fits=lambda attrs: attrs.get("act_type") == "relu"
    ),
    "relu": _Form("_contrib_quantized_act", attrs=lambda attrs: {"act_type": "relu"}),
    **dict.fromkeys(("Flatten", "flatten"), _Form("_contrib_quantized_flatten")),
    **dict.fromkeys(("Concat", "concat"), _JOIN),
    **dict.fromkeys(("elemwise_add", "_Plus", "_plus"), _SUM),
    "BatchNorm": _Form(
        "_contrib_quantized_batch_norm",
        known=True,
        fits=lambda attrs: not _has(attrs, "output_mean_var"),
    ),
}
# Ops whose nodes store the calibrated range of their result, with the prefix of those nodes' names.
# The rest of the name is that of the float32 node that was replaced.
PREFIXES = {"_contrib_requantize": "requantize_", "_contrib_quantized_batch_norm": "quantized_"}


class _Builder:
    """Builds the nodes of a new symbol."""

    def __init__(self):
        self.nodes = []

    def add(self, op, name, inputs=(), attrs=None):
        node = {"op": op, "name": name, "inputs": [[*entry, 0] for entry in inputs]}
        if attrs:
            node["attrs"] = {key: str(value) for key, value in attrs.items()}
        self.nodes.append(node)
        return len(self.nodes) - 1

    def symbol(self, heads):
        graph = {
            "nodes": self.nodes,
            "arg_nodes": [i for i, node in enumerate(self.nodes) if node["op"] == "null"],
            "node_row_ptr": list(range(len(self.nodes) + 1)),
            "heads": [[*entry, 0] for entry in heads],
            "attrs": {"mxnet_version": ["int", 10901]},
        }
        return _symbol.load_json(json.dumps(graph))


def _tensor_name(node, output, outputs):
    """Returns the name in `Symbol.list_outputs` of a symbol's internals."""
    if node["op"] == "null":
        return node["name"]
    return node["name"] + ("_output" if outputs == 1 else f"_output{output}")


class _Quantizer:
    def __init__(self, graph, params, dtype, full, calibrated, excluded_names, excluded_ops):
        self.old = graph["nodes"]
        self.heads = [tuple(head[:2]) for head in graph["heads"]]
        self.params = params
        self.dtype, self.full, self.calibrated = dtype, full, calibrated
        self.excluded_names, self.excluded_ops = excluded_names, excluded_ops
        self.new = _Builder()
        self.plain = {}  # old entry: new float32 entry
        self.small = {}  # old entry: new entries of the quantized values and of their range
        self.names = []  # names of the tensors whose ranges must be calibrated

    def name_of(self, entry):
        number, output = entry
        outputs = len(self.outputs_of(number))
        return _tensor_name(self.old[number], output, outputs)

    def outputs_of(self, number):
        node = self.old[number]
        if node["op"] == "null":
            return [0]
        if "count" not in node:
            inputs = [_symbol.var(f"in{i}") for i in range(len(node["inputs"]))]
            alone = _Builder()
            places = [(alone.add("null", f"in{i}"), 0) for i in range(len(inputs))]
            made = alone.add(node["op"], "node", places, node.get("attrs"))
            node["count"] = len(alone.symbol([(made, 0)]).get_internals().list_outputs()) - len(
                inputs
            )
        return range(node["count"])

    def as_float(self, entry):
        if entry not in self.plain:
            number, output = entry
            name = f"dequantize_{self.old[number]['name']}" + (f"_{output}" if output else "")
            made = self.new.add("_contrib_dequantize", name, self.small[entry])
            self.plain[entry] = made, 0
        return self.plain[entry]

    def as_small(self, entry):
        if entry not in self.small:
            number, output = entry
            name = self.old[number]["name"] + (f"_{output}" if output else "") + "_quantize"
            made = self.new.add(
                "_contrib_quantize_v2", name, [self.as_float(entry)], {"out_type": self.dtype}
            )
            self.small[entry] = [(made, i) for i in range(3)]
            self.names.append(self.name_of(entry))
        return self.small[entry]

    def parameter(self, entry):
        """Returns the entries of a weight or bias, whose quantized values are new parameters."""
        if entry not in self.small:
            name = self.old[entry[0]]["name"] + "_quantize"
            ends = name, name + "_min", name + "_max"
            self.small[entry] = [(self.new.add("null", one), 0) for one in ends]
        return self.small[entry]

    def is_parameter(self, entry):
        node = self.old[entry[0]]
        return node["op"] == "null" and node["name"] in self.params

    def copy(self, node, number):
        inputs = [self.as_float(tuple(entry[:2])) for entry in node["inputs"]]
        made = self.new.add(node["op"], node["name"], inputs, node.get("attrs"))
        for output in self.outputs_of(number):
            self.plain[number, output] = made, output

    def can(self, node):
        """Returns the quantized form of a node, or None."""
        form, attrs = FORMS.get(node["op"]), node.get("attrs", {})
        inputs = [tuple(entry[:2]) for entry in node["inputs"]]
        if node["op"] in self.excluded_ops or node["name"] in self.excluded_names:
            return None
        if form is None or not form.fits(attrs) or (form.known and not self.calibrated):
            return None
        if form.layer:
            return form if all(map(self.is_parameter, inputs[1:])) else None
        data = inputs[:1] if form.known else inputs
        if any(map(self.is_parameter, data)):
            return None
        return form if self.full or all(entry in self.small for entry in data) else None

    def replace(self, node, number, form):
        attrs = {k: v for k, v in node.get("attrs", {}).items() if not k.startswith("__")}
        inputs = [tuple(entry[:2]) for entry in node["inputs"]]
        if form.layer:
            parts = [self.as_small(inputs[0]), *map(self.parameter, inputs[1:])]
        else:
            parts = [self.as_small(entry) for entry in (inputs[:1] if form.known else inputs)]
        entries = [part[0] for part in parts]
        if form.known:
            entries += [self.as_float(entry) for entry in inputs[1:]]
        entries += [end for part in parts for end in part[1:]]
        made = self.new.add(form.name, "quantized_" + node["name"], entries, form.attrs(attrs))
        result = [(made, i) for i in range(3)]
        if form.sums:
            made = self.new.add("_contrib_requantize", "requantize_" + node["name"], result)
            result = [(made, i) for i in range(3)]
        if form.sums or form.known:
            self.names.append(node["name"] + "_output")
        self.small[number, 0] = result

    def run(self):
        for number, node in enumerate(self.old):
            if node["op"] == "null":
                if node["name"] not in self.params or self.is_read_as_float(number):
                    made = self.new.add("null", node["name"], (), node.get("attrs"))
                    self.plain[number, 0] = made, 0
                continue
            form = self.can(node)
            if form:
                self.replace(node, number, form)
            else:
                self.copy(node, number)
        return self.new.symbol([self.as_float(head) for head in self.heads])

    def is_read_as_float(self, number):
        """True if a parameter is also read by ops that do not take its quantized values."""
        readers = [node for node in self.old if [number, 0] in [e[:2] for e in node["inputs"]]]
        forms = [self.can(node) for node in readers]
        return not readers or not all(form and form.layer for form in forms)


def quantize(sym, params, dtype, full, calibrated, excluded_names, excluded_ops):
    """Returns (symbol, names of the tensors whose ranges can be set)."""
    graph = json.loads(sym.tojson())
    work = _Quantizer(graph, params, dtype, full, calibrated, excluded_names, excluded_ops)
    return work.run(), list(dict.fromkeys(work.names))


def calibrate(qsym, ranges, dtype):
    """Returns the symbol with the ranges of its tensors."""
    graph = json.loads(qsym.tojson())
    nodes = graph["nodes"]
    for node in nodes:
        if node["op"] in PREFIXES:
            keys = [node["name"].removeprefix(PREFIXES[node["op"]]) + "_output"]
        elif node["op"] == "_contrib_quantize_v2":
            number, output = node["inputs"][0][:2]
            source = nodes[number]
            keys = [source["name"]] if source["op"] == "null" else []
            keys += [f"{source['name']}_output", f"{source['name']}_output{output}"]
        else:
            continue
        found = [ranges[key] for key in keys if key in ranges]
        if not found and node["name"].startswith("quantized_"):
            raise ValueError(f"calibration has no range for {keys[0]}")
        if not found:
            continue
        low, high = (float(end) for end in found[0])
        attrs = node.setdefault("attrs", {})
        attrs.update(min_calib_range=repr(low), max_calib_range=repr(high))
        if node["op"] == "_contrib_requantize" and low >= 0 and dtype != "int8":
            attrs["out_type"] = "uint8"
    return _symbol.load_json(json.dumps(graph))


def fold_batch_norms(sym, args, aux):
    """Folds each BatchNorm after a convolution into that convolution, for inference."""
    graph = json.loads(sym.tojson())
    nodes, heads = graph["nodes"], [tuple(head[:2]) for head in graph["heads"]]
    readers = {}
    for node in nodes:
        for entry in node["inputs"]:
            readers[tuple(entry[:2])] = readers.get(tuple(entry[:2]), 0) + 1
    args, aux = dict(args), dict(aux)
    new, places = _Builder(), {}
    for number, node in enumerate(nodes):
        inputs = [tuple(entry[:2]) for entry in node["inputs"]]
        source = inputs[0][0] if inputs else None
        if (
            node["op"] == "BatchNorm"
            and nodes[source]["op"] == "Convolution"
            and readers[inputs[0]] == 1
            and inputs[0] not in heads
            and int(node.get("attrs", {}).get("axis", 1)) == 1
            and not _has(node.get("attrs", {}), "output_mean_var")
            and _channels_first(nodes[source])
            and all(nodes[k]["op"] == "null" and readers[k, 0] == 1 for k, _ in inputs[1:])
            and readers[tuple(nodes[source]["inputs"][1][:2])] == 1
        ):
            made = _folded(new, nodes, node, nodes[source], places, args, aux)
            places[number, 0] = made, 0
            continue
        made = new.add(node["op"], node["name"], [places[e] for e in inputs], node.get("attrs"))
        for output in (
            {entry[1] for entry in readers if entry[0] == number}
            | {entry[1] for entry in heads if entry[0] == number}
            | {0}
        ):
            places[number, output] = made, output
    sym = new.symbol([places[head] for head in heads])
    names, states = set(sym.list_arguments()), set(sym.list_auxiliary_states())
    return (
        sym,
        {k: v for k, v in args.items() if k in names},
        {k: v for k, v in aux.items() if k in states},
    )


def _channels_first(node):
    return str(node.get("attrs", {}).get("layout", "None")) in ("None", "NCW", "NCHW", "NCDHW")


def _folded(new, nodes, norm, convolution, places, args, aux):
    """Adds the convolution with scaled weights, under the BatchNorm's name."""
    gamma, beta, mean, var = (nodes[entry[0]]["name"] for entry in norm["inputs"][1:])
    attrs = norm.get("attrs", {})
    eps = float(ast.literal_eval(str(attrs.get("eps", 0.001))))
    factor = 1 / (aux[var].astype("float64") + eps).sqrt()
    if not _has(attrs, "fix_gamma", True):
        factor = factor * args[gamma].astype("float64")
    offset = args[beta].astype("float64") - aux[mean].astype("float64") * factor
    own = dict(convolution.get("attrs", {}))
    inputs = [places[tuple(entry[:2])] for entry in convolution["inputs"]]
    weight = nodes[convolution["inputs"][1][0]]["name"]
    values = args[weight].astype("float64")
    shape = (-1,) + (1,) * (values.ndim - 1)
    prefix = norm["name"] + "_folded"
    args[prefix + "_weight"] = (values * factor.reshape(shape)).astype(args[weight].dtype)
    if len(convolution["inputs"]) > 2:
        bias = args[nodes[convolution["inputs"][2][0]]["name"]]
        offset = offset + bias.astype("float64") * factor
    args[prefix + "_bias"] = offset.astype(args[weight].dtype)
    own["no_bias"] = "False"
    inputs = [inputs[0]]
    inputs += [(new.add("null", prefix + part), 0) for part in ("_weight", "_bias")]
    return new.add("Convolution", norm["name"], inputs, own)
