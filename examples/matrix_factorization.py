"""Matrix factorization over two devices: the tables of users and of items are large, so they are
split, in two ways.

With `by table`, the users' half of the network (table and layers) is on the first device, the
items' half on the last, and only a batch's rows are transferred (``as_in_context``). With `by
rows`, each device has some rows of both tables, so that a table may be larger than any device
(``mx.parallel.shard``). Both are compared with one device: time, error, parameters and memory. The
ratings are synthetic: hidden tastes of users and items, and noise.

    python matrix_factorization.py
    python matrix_factorization.py --devices "gpu(0)" "gpu(1)"
"""

import argparse
from collections.abc import Iterator
from typing import Any

import numpy as np

import mpgluon as mx
from common import difference, output, parameters, parser, print_table
from measuring import milliseconds, new_figure, plain_step, save, take_turns, why
from mpgluon import gluon
from mpgluon.gluon import nn


# --- The idea -------------------------------------------------------------------------------------
def rows_over(net: "Factorization", devices: list[mx.Context]) -> None:
    """Divides the rows of both tables over the devices; call it before initialization."""
    mx.parallel.shard(net, {".*_table": "vocab"}, devices)


class Factorization(gluon.HybridBlock):
    """Predicts ratings as the product of two towers, each a table followed by two layers, on
    `user_ctx` and on `item_ctx`."""

    def __init__(
        self,
        users: int,
        items: int,
        factors: int,
        hidden: int,
        user_ctx: mx.Context,
        item_ctx: mx.Context,
    ) -> None:
        super().__init__(prefix="factorization_")
        self.user_ctx, self.item_ctx = user_ctx, item_ctx
        with self.name_scope():
            self.user_table, self.item_table = (
                nn.Embedding(users, factors),
                nn.Embedding(items, factors),
            )
            self.user_tower, self.item_tower = (
                nn.HybridSequential(prefix=f"{kind}_") for kind in ("user", "item")
            )
            for tower in (self.user_tower, self.item_tower):
                with tower.name_scope():
                    tower.add(
                        nn.Dense(hidden, in_units=factors, activation="relu"),
                        nn.Dense(factors, in_units=hidden),
                    )

    def hybrid_forward(self, F: Any, pairs: Any) -> Any:
        users = pairs.slice_axis(axis=1, begin=0, end=1).reshape((-1,)).as_in_context(self.user_ctx)
        items = pairs.slice_axis(axis=1, begin=1, end=2).reshape((-1,)).as_in_context(self.item_ctx)
        user, item = (
            self.user_tower(self.user_table(users)),
            self.item_tower(self.item_table(items)),
        )
        return F.sum(user * item.as_in_context(self.user_ctx), axis=1)


# --- Three ways and their data --------------------------------------------------------------------
def network(options: argparse.Namespace, devices: list[mx.Context], by_rows: bool = False) -> Any:
    """Returns a network on one device, with a tower and its table on each of two devices, or with
    the rows of both tables divided over all devices."""
    mx.random.seed(options.seed)
    places = [devices[0]] * 2 if by_rows else [devices[0], devices[-1]]
    net = Factorization(options.users, options.items, options.factors, options.hidden, *places)
    if by_rows:
        rows_over(net, devices)
    for block, ctx in (
        (net.user_table, places[0]),
        (net.user_tower, places[0]),
        (net.item_table, places[1]),
        (net.item_tower, places[1]),
    ):
        block.initialize(mx.init.Xavier(factor_type="in", magnitude=2.34), ctx=ctx)
    net.hybridize()
    return net


def ratings(users: int, items: int, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns (pairs of user and item, scores). Scores are products of hidden tastes with noise of
    standard deviation 0.1."""
    draw = np.random.RandomState(seed)
    user_taste, item_taste = (
        draw.normal(size=(users, 3)) / 3**0.5,
        draw.normal(size=(items, 3)) / 3**0.5,
    )
    user, item = draw.randint(0, users, count), draw.randint(0, items, count)
    scores = (user_taste[user] * item_taste[item]).sum(axis=1) + 0.1 * draw.normal(size=count)
    return np.stack([user, item], axis=1).astype("float32"), scores.astype("float32")


def batches(pairs: np.ndarray, scores: np.ndarray, size: int, seed: int) -> Iterator[Any]:
    """Yields batches of one epoch in random order and drops an incomplete last batch."""
    order = np.random.RandomState(seed).permutation(len(pairs))
    for at in range(0, len(order) - size + 1, size):
        part = order[at : at + size]
        yield pairs[part], scores[part]


def whole(net: Factorization) -> dict[str, np.ndarray]:
    """Returns parameters as NumPy arrays by name, with split parameters concatenated."""
    values = parameters(net)
    for kind, table in (("user", net.user_table), ("item", net.item_table)):
        parts = [param for param in table.collect_params().values() if hasattr(param, "index")]
        if parts:
            values[f"factorization_{kind}_table"] = np.concatenate(
                [values.pop(p.name) for p in sorted(parts, key=lambda p: p.index)]
            )
        else:
            values[f"factorization_{kind}_table"] = values.pop(table.weight.name)
    return values


def main() -> None:
    arguments = parser(__doc__, devices=2, steps=2800)
    arguments.add_argument("--users", type=int, default=3000)
    arguments.add_argument("--items", type=int, default=2000)
    arguments.add_argument("--ratings", type=int, default=200_000)
    arguments.add_argument("--factors", type=int, default=16)
    arguments.add_argument("--hidden", type=int, default=32)
    arguments.add_argument("--batch", type=int, default=256)
    arguments.add_argument("--lr", type=float, default=5e-3)
    options = arguments.parse_args()
    if len(options.devices) < 2:
        raise SystemExit(
            "--devices must name at least two devices, over which the tables are split"
        )
    mx.context.set_threads(1)  # equal thread counts, so that placement can't change a bit
    pairs, scores = ratings(options.users, options.items, options.ratings, options.seed)
    cut = options.ratings * 9 // 10
    home, loss = options.devices[0], gluon.loss.L2Loss()
    nets = {
        "1 device": network(options, [home]),
        "split by table": network(options, [home, options.devices[1]]),
        "split by rows": network(options, options.devices, by_rows=True),
    }
    ways = {}
    for name, net in nets.items():
        step = plain_step(
            net, loss, gluon.Trainer(net.collect_params(), "adam", {"learning_rate": options.lr})
        )
        ways[name] = lambda x, y, step=step: step(
            mx.nd.array(x, ctx=home), mx.nd.array(y, ctx=home)
        )
    results = take_turns(
        ways, lambda: batches(pairs[:cut], scores[:cut], options.batch, options.seed), options.steps
    )

    rows: list[tuple[str, ...]] = [
        (
            "",
            "ms a step",
            "validation error",
            "largest difference",
            "MB of tables",
            "MB of all parameters",
        )
    ]
    figure, axes = new_figure(8, 3)
    for name, net in nets.items():
        predicted = net(mx.nd.array(pairs[cut:], ctx=home)).asnumpy()
        error = ((predicted - scores[cut:]) ** 2).mean() ** 0.5
        sizes: dict[mx.Context, tuple[float, float]] = {}
        for param in net.collect_params().values():
            table, everything = sizes.get(param.list_ctx()[0], (0, 0))
            size = param.data().size * 4 / 1e6
            sizes[param.list_ctx()[0]] = (
                table + size * ("tower" not in param.name and "_dense" not in param.name),
                everything + size,
            )
        held = [
            ", ".join(
                f"{ctx}: {pair[k]:.3f}"
                for ctx, pair in sorted(sizes.items(), key=lambda item: str(item[0]))
            )
            for k in (0, 1)
        ]
        left = 0.0
        for ctx, (table, _) in sorted(sizes.items(), key=lambda item: str(item[0])):
            color = f"C{options.devices.index(ctx)}"
            axes.barh(name, table, left=left, color=color, edgecolor="white")
            axes.text(left + table / 2, name, str(ctx), ha="center", va="center", fontsize=8)
            left += table
        rows.append(
            (
                name,
                milliseconds(results[name][1]),
                f"{error:.3f}",
                difference(whole(nets["1 device"]), whole(net)),
                *held,
            )
        )
    print()
    print_table(*rows)
    print(f"the mean has a validation error of {scores[cut:].std():.3f}, the noise is 0.100")
    axes.invert_yaxis()
    axes.set(xlabel="MB of tables on each device")
    save(figure, output(options, "matrix_factorization.png"))
    why(ways, next(batches(pairs, scores, options.batch, options.seed)), options.devices)


if __name__ == "__main__":
    main()
