"""Files of a network that is partitioned over two ranks: all ways to write them raise an error on
all ranks.

    mpirun -n 2 python ranks/scripts/partitioned_files.py FOLDER

Each rank prints the errors as one line of JSON.
"""

import json
import os
import sys

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.gluon import nn


def main():
    devices = [mx.cpu(0, rank=rank) for rank in range(2)]
    net = nn.Dense(64, in_units=64, prefix="net_")
    net.initialize(ctx=devices[0])
    mx.parallel.Mesh({"shard": 2}, devices).partition(net, {"weight": "shard"})
    net.hybridize()
    trainer = gluon.Trainer(net.collect_params(), "adam")
    with autograd.record():
        loss = net(nd.ones((4, 64), ctx=devices[0])).sum()
    loss.backward()
    trainer.step(1)
    file = os.path.join(sys.argv[1], f"file{mx.parallel.rank()}")
    errors = []
    for save in (trainer.save_states, net.collect_params().save, net.save_parameters):
        try:
            save(file)
            errors.append(None)
        except mx.MXNetError as error:
            errors.append(str(error))
    print(json.dumps({"rank": mx.parallel.rank(), "errors": errors}), flush=True)


if __name__ == "__main__":
    main()
