"""Checkpoint indexes are validated before anything changes, and threads may share a directory."""

import json
import threading
import time
import zlib

import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.gluon import nn
from mpgluon.parallel import load, save


def made():
    net = nn.Dense(2, in_units=3, prefix="d_")
    net.initialize(mx.init.One())
    return net, gluon.Trainer(net.collect_params(), "adam")


def entry(index):
    return index["arrays"]["weight"]


def piece(index):
    return entry(index)["pieces"][0]


def nested(depth):
    """Returns the structure of a state of lists in lists."""
    structure = "array"
    for _ in range(depth):
        structure = {"list": [structure]}
    return structure


FAULTS = {
    "shard -1": lambda i: piece(i).update(shard=-1, crc32=0),
    "shard 99": lambda i: piece(i).update(shard=99),
    "no shard": lambda i: piece(i).pop("shard"),
    "another shard's key": lambda i: piece(i).update(key="bias"),
    "no pieces": lambda i: entry(i).update(pieces=[]),
    "pieces of text": lambda i: entry(i).update(pieces=["weight"]),
    "half of it": lambda i: (entry(i).update(axis=0), piece(i).update(ranges=[[0, 1]])),
    "twice": lambda i: (entry(i).update(axis=0), piece(i).update(ranges=[[0, 2], [1, 2]])),
    "from the end": lambda i: (entry(i).update(axis=0), piece(i).update(ranges=[[-2, 2]])),
    "ranges without axis": lambda i: piece(i).update(ranges=[[0, 2]]),
    "axis 7": lambda i: entry(i).update(axis=7),
    "huge": lambda i: entry(i).update(shape=[1 << 40, 3]),
    "negative": lambda i: entry(i).update(shape=[-2, 3]),
    "dtype": lambda i: entry(i).update(dtype="object"),
    "another dtype": lambda i: entry(i).update(dtype="int32"),
    "no random": lambda i: i.pop("random"),
    "random": lambda i: i.update(random=[1 << 70, 0]),
    "no arrays": lambda i: i.pop("arrays"),
    "arrays": lambda i: i.update(arrays=[]),
    "shards": lambda i: i.update(shards=[None]),
    "path": lambda i: i["shards"][0].update(file="../other.safetensors"),
    "header": lambda i: i["trainer"].pop("num_update"),
    "counts": lambda i: i["trainer"].update(counts={"weight": "1"}),
    "states": lambda i: i["trainer"]["states"].update(weight=["array"] * 3),
    "state of another shape": lambda i: i["trainer"]["states"].update(weight="array"),
    "structure": lambda i: i["trainer"]["states"].update(weight={"list": "array"}),
    "csr vector": lambda i: i["trainer"]["states"].update(bias=["array", "csr"]),
    "shapes": lambda i: i["trainer"].update(shapes={"weight": ["2", 3]}),
    "deep state": lambda i: i["trainer"]["states"].update(weight=nested(450)),
    "gradients": lambda i: i["trainer"].update(gradients={"weight": {"grad_req": "write"}}),
    "waiting": lambda i: i["trainer"].update(waiting=[-1, 0]),
    "deep": lambda i: i.update(extra=None),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_inconsistent_index_raises_and_changes_nothing(fault, tmp_path):
    net, trainer = made()
    with autograd.record():
        loss = net(nd.ones((1, 3))).sum()
    loss.backward()
    trainer.step(1)
    save(tmp_path, net, trainer)
    path = tmp_path / "index.json"
    index = json.loads(path.read_text())
    index.pop("crc32")
    FAULTS[fault](index)
    text = json.dumps(index, indent=1)
    if fault == "deep":
        text = text.replace('"extra": null', '"extra": ' + "[" * 100_000 + "]" * 100_000)
    path.write_text(text[:-2] + f',\n "crc32": {zlib.crc32(text.encode())}\n}}\n')
    other, its_trainer = made()
    with pytest.raises(mx.MXNetError):
        load(tmp_path, other, its_trainer)
    assert (other.weight.data().asnumpy() == 1).all()
    assert its_trainer.optimizer.num_update == 0


def test_threads_may_save_into_one_directory(tmp_path):
    """The directory can be loaded at any time and always holds one complete checkpoint."""
    nets, errors = [], []
    for value in range(3):
        net = nn.HybridSequential(prefix="n_")
        with net.name_scope():
            net.add(nn.Dense(50, in_units=50), nn.Dense(50, in_units=50))
        net.initialize(mx.init.Constant(value))
        nets.append(net)
    save(tmp_path, nets[0])

    def work(net, which):
        try:
            for i in range(6):
                which[i % len(which)](tmp_path, net)
        except Exception as error:
            errors.append(error)

    reader = nn.HybridSequential(prefix="n_")
    with reader.name_scope():
        reader.add(nn.Dense(50, in_units=50), nn.Dense(50, in_units=50))
    reader.initialize()
    threads = [threading.Thread(target=work, args=(net, [save])) for net in nets]
    threads.append(threading.Thread(target=work, args=(reader, [load])))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    load(tmp_path, reader)
    found = {
        float(v)
        for p in reader.collect_params().values()
        if p.name.endswith("weight")
        for v in p.data().asnumpy().ravel()
    }
    assert len(found) == 1 and found <= {0.0, 1.0, 2.0}


def test_checkpoint_load_is_not_much_slower_than_load_parameters(tmp_path):
    """Files are opened and headers parsed once for all arrays, not once per array."""
    net = nn.HybridSequential(prefix="n_")
    with net.name_scope():
        for _ in range(500):
            net.add(nn.Dense(2, in_units=2))
    net.initialize()
    save(tmp_path, net)
    net.save_parameters(str(tmp_path / "p"))

    def seconds(work):
        times = []
        for _ in range(3):
            begin = time.process_time()
            work()
            times.append(time.process_time() - begin)
        return min(times)

    plain = seconds(lambda: net.load_parameters(str(tmp_path / "p")))
    assert seconds(lambda: load(tmp_path, net)) < 10 * plain + 0.02
