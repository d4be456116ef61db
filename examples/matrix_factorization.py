"""Matrix factorisation over two devices: the tables of users and of items on one, the network on top of them on another.

The tables are what is large, so they get a device of their own; only a batch's rows cross. Groups (``AttrScope(ctx_group=...)``) say what
belongs together, ``group2ctxs`` of `Module` where it lives. Ratings are made up: hidden tastes of users and items, and noise.

    python matrix_factorization.py
    python matrix_factorization.py --devices "gpu(0)" "gpu(1)"
"""

import argparse
import logging

import numpy as np
from common import device, print_table

import mpgluon as mx


def network(users, items, factors, hidden):
    """Predicts ratings: the product of two towers, each an embedding with a layer on top."""
    towers = []
    for kind, count in (("user", users), ("item", items)):
        with mx.AttrScope(ctx_group="tables"):
            rows = mx.sym.Embedding(mx.sym.Variable(kind), input_dim=count, output_dim=factors, name=f"{kind}_table")
        with mx.AttrScope(ctx_group="network"):
            rows = mx.sym.Activation(mx.sym.FullyConnected(rows, num_hidden=hidden, name=f"{kind}_hidden"), act_type="relu")
            towers.append(mx.sym.FullyConnected(rows, num_hidden=factors, name=f"{kind}_out"))
    with mx.AttrScope(ctx_group="network"):
        ratings = mx.sym.sum(towers[0] * towers[1], axis=1)
        return mx.sym.LinearRegressionOutput(ratings, mx.sym.Variable("score"), name="rating")


def ratings(users, items, count, seed=0):
    """(users, items, scores): products of hidden tastes, with noise of standard deviation 0.1."""
    draw = np.random.RandomState(seed)
    user_taste, item_taste = draw.normal(size=(users, 3)) / 3**0.5, draw.normal(size=(items, 3)) / 3**0.5
    user, item = draw.randint(0, users, count), draw.randint(0, items, count)
    return user, item, (user_taste[user] * item_taste[item]).sum(axis=1) + 0.1 * draw.normal(size=count)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--devices", nargs=2, type=device, default=[mx.cpu(0), mx.cpu(1)], help="of the tables and of the network")
    parser.add_argument("--users", type=int, default=3000)
    parser.add_argument("--items", type=int, default=2000)
    parser.add_argument("--ratings", type=int, default=200_000)
    parser.add_argument("--factors", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--lr", type=float, default=5e-3)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    np.random.seed(1)
    mx.random.seed(1)

    user, item, score = ratings(options.users, options.items, options.ratings)
    cut = options.ratings * 9 // 10
    iterators = [
        mx.io.NDArrayIter({"user": user[part], "item": item[part]}, {"score": score[part]}, options.batch, shuffle=part.start is None)
        for part in (slice(None, cut), slice(cut, None))
    ]
    groups = dict(zip(("tables", "network"), options.devices))
    module = mx.mod.Module(
        network(options.users, options.items, options.factors, options.hidden), data_names=("user", "item"), label_names=("score",), group2ctxs=groups
    )
    module.fit(
        iterators[0], iterators[1], eval_metric="rmse", optimizer="adam", optimizer_params={"learning_rate": options.lr, "rescale_grad": 1.0 / options.batch},
        initializer=mx.init.Xavier(factor_type="in", magnitude=2.34), num_epoch=options.epochs, batch_end_callback=mx.callback.Speedometer(options.batch, 200),
    )  # fmt: skip
    error = dict(module.score(iterators[1], "rmse"))["rmse"]
    print(f"validation error {error:.3f}; the mean has {score[cut:].std():.3f}, the noise 0.100")
    rows = [("on", "group", "parameters", "MB of parameters", "MB at most")]
    shapes = {name: array.shape for name, array in module.get_params()[0].items()}
    for group, ctx in groups.items():
        names = [name for name in shapes if ("table" in name) == (group == "tables")]
        size = sum(np.prod(shapes[name]) for name in names) * 4 / 1e6
        rows.append((ctx, group, ", ".join(names), f"{size:.2f}", f"{mx.context.memory_stats(ctx)['peak_in_use'] / 1e6:.1f}"))
    print_table(*rows)


if __name__ == "__main__":
    main()
