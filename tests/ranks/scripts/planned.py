"""A plan for two ranks with measured links. Both ranks get the same plan and train with it.

mpirun -n 2 python planned.py
"""

import json
import sys

import mpgluon as mx
from mpgluon import gluon, nd, parallel as par
from mpgluon.gluon import nn

RANK = par.rank()
DEVICES = [mx.cpu(0, rank=i) for i in range(par.num_ranks())]
LOSS = gluon.loss.L2Loss()
X, Y = nd.ones((16, 64)), nd.ones((16, 64))


def network(ctx):
    net = nn.HybridSequential()
    net.add(*[nn.Dense(64, in_units=64, activation="relu") for _ in range(4)])
    net.initialize(mx.init.Xavier(), ctx=ctx)
    return net


net = network(mx.cpu(0))
bytes_of_all = sum(4 * p.data().size for p in net.collect_params().values())
plan = par.plan(
    net, X, DEVICES, loss=LOSS, labels=Y, repeats=1, progress=False, memory=3 * bytes_of_all // 2
)
links = list(plan.profile.transfer.values())
assert len(links) == 2 and all(0 < seconds < 1 and 0 < each < 1 for seconds, each in links), links
assert par.Plan.from_json(json.loads(json.dumps(plan.to_json()))).placement == plan.placement
assert plan.fits() and set(plan.placement.values()) == set(DEVICES)
net.place(plan)
step = par.TrainStep(net, LOSS, gluon.Trainer(net.collect_params(), "sgd"), plan.pipeline())
losses = [float(par.fetch(step(X, Y)).asnumpy().mean()) for _ in range(2)]
compared = plan.compare(step.pipeline.report())
assert {ctx for ctx, _ in compared.stages} == set(DEVICES)
own = [passes for ctx, passes in compared.stages if ctx.rank == RANK]
assert own and all(passes["F"][1] > 0 for passes in own), str(compared)
try:
    par.plan(network(DEVICES[1]), X, DEVICES, loss=LOSS, labels=Y)
except mx.MXNetError as error:
    assert "is on cpu(0, rank=1)" in str(error)
else:
    raise AssertionError("no error")
cluster = par.Cluster.of_ranks()
assert cluster.counts == [2] and cluster.per_host == 2 and cluster.inside.seconds > 0
(found,) = par.simulate(plan.profile, cluster, mesh={"stage": 2}).outcomes
assert found.seconds > 0
found = {"rank": RANK, "plan": plan.to_json(), "losses": losses}
sys.stdout.write("\n" + json.dumps(found) + "\n")
