"""Randomly damaged symbol and parameter files give an error or a symbol, quickly, and never crash.

The mutations are the same in each run. Set `FUZZ_SECONDS` to run more of them with a sanitizer
build.
"""

import json
import os
import random
import time

import numpy as np
import pytest

import mpgluon as mx
from mpgluon.base import MXNetError
from support.calls import raises
from support.paths import TESTS

SECONDS = float(os.environ.get("FUZZ_SECONDS", "0"))
# Exceptions allowed for damaged files: ours, and Python's for values of wrong types.
ALLOWED = (MXNetError, ValueError, TypeError, KeyError, AssertionError, OSError, UnicodeDecodeError)


def control():
    x, s = mx.sym.var("x"), mx.sym.var("s")
    out, last = mx.sym.contrib.foreach(
        lambda a, st: (mx.sym.FullyConnected(a + st, num_hidden=4, name="fc"), st * 2), x, s
    )
    outs, loop = mx.sym.contrib.while_loop(
        lambda i, v: i < 3,
        lambda i, v: ([mx.sym.broadcast_mul(v, i)], [i + 1, v * 2]),
        [mx.sym.sum(last), last],
        max_iterations=4,
    )
    return mx.sym.Group(
        [
            mx.sym.contrib.cond(mx.sym.sum(out) > 0, lambda: out * 2, lambda: out + 1),
            outs[0],
            mx.sym.contrib.boolean_mask(s, mx.sym.sum(s, axis=1)),
        ]
    )


def layers():
    data = mx.sym.var("data", shape=(2, 3, 8, 8))
    body = mx.sym.Convolution(data, kernel=(3, 3), num_filter=4, pad=(1, 1), name="conv")
    body = mx.sym.Activation(mx.sym.BatchNorm(body, name="bn"), act_type="relu")
    body = mx.sym.Pooling(body, kernel=(2, 2), stride=(2, 2), pool_type="max")
    return mx.sym.SoftmaxOutput(
        mx.sym.FullyConnected(mx.sym.Dropout(mx.sym.flatten(body)), num_hidden=3, name="fc"),
        name="softmax",
    )


def texts():
    return [control().tojson(), layers().tojson()]


SPANS = r'" { } [ ] , -1 99999999999999999999 1e400 null true NaN [[[[ 0 \u0000'.split()
SPANS += ['"subgraphs"', '"nodes"']


def mutate_text(rng, text):
    text = list(text)
    for _ in range(rng.choice([1, 1, 2, 5])):
        at, kind = rng.randrange(len(text) + 1), rng.randrange(4)
        if kind == 0:
            del text[at : at + rng.choice([1, 3, 50, 1000])]
        elif kind == 1:
            text[at:at] = rng.choice(SPANS)
        elif kind == 2:
            text[at : at + 1] = chr(rng.choice([0, 34, 48, 57, 92, 127, 255, 0x1F600]))
        else:
            begin = rng.randrange(len(text) + 1)
            text[at:at] = text[begin : begin + rng.choice([5, 100])]
    return "".join(text)


VALUES = [None, True, 0, -1, 1, 2, 7, 1 << 31, 1 << 63, 1 << 70, 1.5, [], {}, [[0, 0, 0]]]
VALUES += ["", "0", "-1", "(1, 2)", "[]", "[0]", "[0, 1, 2, 3]", "99999999999", "None", "nan"]
VALUES += ["_foreach", "relu"]


def mutate_tree(rng, text):
    """Puts wrong values into the document."""
    document = json.loads(text)
    places = []

    def visit(value):
        items = (
            value.items()
            if isinstance(value, dict)
            else enumerate(value)
            if isinstance(value, list)
            else ()
        )
        for key, item in items:
            places.append((value, key))
            visit(item)

    visit(document)
    for _ in range(rng.choice([1, 1, 2, 4])):
        holder, key = rng.choice(places)
        try:
            kind = rng.randrange(4)
            if kind == 0:
                del holder[key]
            elif kind == 1:
                other, at = rng.choice(places)
                holder[key] = json.loads(json.dumps(other[at]))
            else:
                holder[key] = rng.choice(VALUES)
        except (KeyError, IndexError):
            continue  # removed by an earlier mutation
    return json.dumps(document)


def use(text):
    """Reads and uses a symbol as a program would; True on success."""
    try:
        symbol = mx.sym.load_json(text)
        again = mx.sym.load_json(symbol.tojson())
        assert again.list_outputs() == symbol.list_outputs()
        shapes = {"x": (3, 2, 4), "s": (2, 4), "data": (2, 3, 8, 8)}
        shapes = {name: shape for name, shape in shapes.items() if name in symbol.list_arguments()}
        found = symbol.infer_shape_partial(**shapes)
        size = sum(
            int(np.prod([max(d, 1) for d in shape], dtype=object))
            for group in found
            for shape in group
        )
        if size < 1 << 20:
            exe = symbol.simple_bind(mx.cpu(), grad_req="null", **shapes)
            [out.wait_to_read() for out in exe.forward()]
    except ALLOWED:
        return False
    except MemoryError as error:
        assert isinstance(error, MXNetError), error
        return False
    return True


def deadline(count):
    """Yields run numbers: at least `count`, and more until the time is up."""
    end = time.monotonic() + SECONDS
    number = 0
    while number < count or time.monotonic() < end:
        yield number
        number += 1


@pytest.mark.parametrize("mutate", [mutate_text, mutate_tree])
@pytest.mark.filterwarnings("ignore")
def test_damaged_symbol_files_never_crash(mutate):
    files = texts()
    assert all(use(text) for text in files)
    slowest, fine = 0, 0
    for number in deadline(200):
        text = mutate(random.Random(number), files[number % len(files)])
        begin = time.process_time()
        try:
            fine += use(text)
        except Exception as error:
            raise AssertionError(
                f"mutation {number}: {type(error).__name__}: {error}\n{text}"
            ) from error
        slowest = max(slowest, time.process_time() - begin)
    assert slowest < 5
    assert fine > 0


def test_damaged_parameter_files_never_crash(tmp_path):
    name = str(tmp_path / "a.params")
    mx.nd.save(
        name,
        {
            "fc_weight": mx.nd.ones((3, 4)),
            "fc_bias": mx.nd.zeros((3,)),
            "n": mx.nd.array([1, 2], dtype="int64"),
        },
    )
    with open(name, "rb") as file:
        whole = file.read()
    for number in deadline(400):
        rng = random.Random(number)
        data = bytearray(whole)
        for _ in range(rng.choice([1, 2, 8])):
            at, kind = rng.randrange(len(data)), rng.randrange(4)
            if kind == 0:
                data[at] = rng.choice([0, 1, 127, 128, 255, rng.randrange(256)])
            elif kind == 1:
                del data[at:]
            elif kind == 2:
                data[at : at + 8] = rng.choice(
                    [
                        b"\xff" * 8,
                        b"\x00" * 8,
                        (1 << 40).to_bytes(8, "little"),
                        (1 << 63).to_bytes(8, "little"),
                    ]
                )
            else:
                data[at:at] = bytes(rng.randrange(256) for _ in range(rng.choice([1, 8, 64])))
            if not data:
                break
        with open(name, "wb") as file:
            file.write(data)
        begin = time.process_time()
        try:
            loaded = mx.nd.load(name)
            for array in loaded.values() if isinstance(loaded, dict) else loaded:
                if array is not None:  # the format can mark an array as absent
                    array.asnumpy()
        except ALLOWED:
            pass
        except MemoryError as error:
            assert isinstance(error, MXNetError), error
        assert time.process_time() - begin < 5


def nested(depth):
    """Returns a graph nested `depth` levels deep."""
    graph = {
        "nodes": [
            {"op": "null", "name": "x", "inputs": []},
            {"op": "_copy", "name": "c", "inputs": [[0, 0, 0]]},
        ],
        "heads": [[1, 0, 0]],
    }
    attrs = {
        "num_outputs": "1",
        "num_out_data": "1",
        "in_data_locs": "[0]",
        "in_state_locs": "[]",
        "remain_locs": "[]",
    }
    for _ in range(depth):
        node = {
            "op": "_foreach",
            "name": "f",
            "attrs": attrs,
            "inputs": [[0, 0, 0]],
            "subgraphs": [graph],
        }
        graph = {"nodes": [{"op": "null", "name": "x", "inputs": []}, node], "heads": [[1, 0, 0]]}
    return json.dumps(graph)


def test_deeply_nested_subgraphs_are_refused():
    assert mx.sym.load_json(nested(8)).list_arguments() == ["x"]
    raises(MXNetError, "graphs are nested deeper", lambda: mx.sym.load_json(nested(40)))
    head, tail = nested(1).split('"subgraphs": [')[0] + '"subgraphs": [', "]}]}"
    with pytest.raises(MXNetError):
        mx.sym.load_json(head * 5000 + tail * 5000)
    wide = json.loads(nested(1))
    wide["nodes"][1]["subgraphs"] = wide["nodes"][1]["subgraphs"] * 10000
    raises(MXNetError, "the file has 10000", lambda: mx.sym.load_json(json.dumps(wide)))


WRONG = {
    "graphs": (
        lambda node: node["subgraphs"].append(node["subgraphs"][0]),
        "must have 1 graphs inside it, but the file has 2",
    ),
    "none": (
        lambda node: node.pop("subgraphs"),
        "must have 1 graphs inside it, but the file has 0",
    ),
    "locs": (
        lambda node: node["attrs"].update(in_data_locs="[5]"),
        "in_data_locs must have indices below 1",
    ),
    "text": (
        lambda node: node["attrs"].update(in_data_locs="[x]"),
        "in_data_locs must be a list of integers",
    ),
    "twice": (
        lambda node: node["attrs"].update(in_state_locs="[0]"),
        "contain each of the 1 variables of the graph exactly once",
    ),
    "outputs": (lambda node: node["attrs"].update(num_outputs="3"), "the graph has 1 results"),
    "many": (lambda node: node["attrs"].update(num_outputs="99999999999"), "but must be 1 to 4096"),
    "missing": (lambda node: node["attrs"].pop("num_outputs"), "num_outputs is missing"),
    "word": (
        lambda node: node["attrs"].update(num_outputs="two"),
        "num_outputs must be an integer",
    ),
    "list": (
        lambda node: node.update(subgraphs={}) or node.update(subgraphs="x"),
        "subgraphs should be list",
    ),
    "body": (lambda node: node.update(subgraphs=[1]), "a graph inside it should be dict"),
    "other": (lambda node: node.update(op="relu"), r"nodes with graphs inside them \(relu\)"),
}


@pytest.mark.parametrize("name", WRONG)
def test_invalid_subgraph_is_refused(name):
    change, words = WRONG[name]
    document = json.loads(nested(1))
    change(document["nodes"][1])
    raises(MXNetError, words, lambda: mx.sym.load_json(json.dumps(document)))


@pytest.mark.parametrize(
    "target",
    ["params", "symbol", "safetensors", "gguf", "checkpoint", "trainer_states", "parameters"],
)
def test_fuzz_corpus_never_crashes_reader(target):
    """Reads the corpus that tests/fuzz found to reach the most code, and valid files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(os.path.join(TESTS, "fuzz"))
        import readers
    read = readers.limited(readers.TARGETS[target])
    corpus = os.path.join(os.path.dirname(readers.__file__), "corpus", target)
    for data in readers.seeds(readers.TARGETS[target]):
        read(data)
        for end in range(0, len(data), 37):
            read(data[:end])
    for name in os.listdir(corpus) if os.path.isdir(corpus) else ():
        with open(os.path.join(corpus, name), "rb") as file:
            read(file.read())


def test_mismatched_parameters_are_reported_by_name(tmp_path):
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Dense(3, in_units=4), mx.gluon.nn.Dense(2, in_units=3))
    net.initialize()
    good = str(tmp_path / "good.params")
    net.save_parameters(good)
    arrays = mx.nd.load(good)
    for change, words in (
        (lambda d: d.pop("1.weight"), "1.weight"),
        (lambda d: d.update(extra=mx.nd.ones((1,))), "extra"),
        (
            lambda d: d.update({"0.weight": mx.nd.ones((3, 5))}),
            r"\(3, 5\).*\(3, 4\)|\(3, 4\).*\(3, 5\)",
        ),
        (lambda d: d.update({"0.weight": mx.nd.ones((3, 4), dtype="int32")}), "int32"),
    ):
        changed = dict(arrays)
        change(changed)
        name = str(tmp_path / "bad.params")
        mx.nd.save(name, changed)
        before = {
            key: param.data().asnumpy() for key, param in net._collect_params_with_prefix().items()
        }
        raises((MXNetError, AssertionError, ValueError), words, lambda: net.load_parameters(name))
        for key, param in net._collect_params_with_prefix().items():
            assert np.array_equal(before[key], param.data().asnumpy()), key
