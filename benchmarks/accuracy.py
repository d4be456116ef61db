"""Errors beside PyTorch's, both of float32, against results of float64.

    python benchmarks/accuracy.py                          everything, a few minutes
    python benchmarks/accuracy.py --parts functions,sums   some of it
    python benchmarks/accuracy.py --limit 2                fails where an error is more than twice PyTorch's

Functions: the largest error in units of the last place (of the exact result as float32), over samples of all magnitudes whose results are
finite and normal numbers. Everything else: the largest error, relative to the largest exact result, or, where results have no common
scale, to each; the parts say which. A row without a figure of PyTorch's has no counterpart there.
"""

import argparse
import sys

import numpy as np
import torch
import torch.nn.functional as functional

import mpgluon as mx
from mpgluon import autograd, gluon, nd

PARTS = {}


def part(function):
    PARTS[function.__name__] = function
    return function


def ulps(result, exact, where=None):
    result, exact = np.asarray(result, "float64"), np.asarray(exact, "float64")
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = exact.astype("float32")
        valid = np.isfinite(rounded) & (np.abs(rounded) >= 2.0**-126) & np.isfinite(exact)
        if where is not None:
            valid &= where
        unit = np.spacing(np.abs(rounded)).astype("float64")
        error = np.abs(result - exact) / unit
    return float(np.max(error[valid], initial=0.0))


def relative(result, exact):
    """To the largest result."""
    result, exact = np.asarray(result, "float64"), np.asarray(exact, "float64")
    return float(np.max(np.abs(result - exact)) / max(np.max(np.abs(exact)), 1e-300))


def each(result, exact):
    """To each result."""
    result, exact = np.asarray(result, "float64"), np.asarray(exact, "float64")
    return float(np.max(np.abs(result - exact) / np.abs(exact)))


def samples(low, high, count=300000, seed=0):
    """Of [low, high]: half of them evenly, half evenly by exponent."""
    random = np.random.RandomState(seed)
    even = random.uniform(max(low, -100), min(high, 100), count)
    largest = max(abs(low), abs(high))
    powers = np.exp2(random.uniform(-30, np.log2(largest), 2 * count)) * random.choice([-1.0, 1.0], 2 * count)
    values = np.concatenate([even, powers]).astype("float32")
    return values[(values >= low) & (values <= high)]


# --- Functions of one number ------------------------------------------------------------------------------------------

BIG = 3e38


def _functions():
    import scipy.special as special

    def of_torch(function):
        return lambda x: function(torch.from_numpy(x)).numpy()

    def gelu_exact(x):
        return x * special.ndtr(x)

    def softrelu(x):
        return np.logaddexp(0, x)

    activation = {"sigmoid": torch.sigmoid, "softrelu": functional.softplus}
    table = [  # name, ours, PyTorch's, exact, range
        ("exp", nd.exp, torch.exp, np.exp, -104, 89),
        ("expm1", nd.expm1, torch.expm1, np.expm1, -104, 89),
        ("log", nd.log, torch.log, np.log, 1e-38, BIG),
        ("log1p", nd.log1p, torch.log1p, np.log1p, -1, BIG),
        ("log2", nd.log2, torch.log2, np.log2, 1e-38, BIG),
        ("log10", nd.log10, torch.log10, np.log10, 1e-38, BIG),
        ("sin", nd.sin, torch.sin, np.sin, -1e30, 1e30),
        ("cos", nd.cos, torch.cos, np.cos, -1e30, 1e30),
        ("tan", nd.tan, torch.tan, np.tan, -1e30, 1e30),
        ("arcsin", nd.arcsin, torch.asin, np.arcsin, -1, 1),
        ("arccos", nd.arccos, torch.acos, np.arccos, -1, 1),
        ("arctan", nd.arctan, torch.atan, np.arctan, -BIG, BIG),
        ("sinh", nd.sinh, torch.sinh, np.sinh, -88, 88),
        ("cosh", nd.cosh, torch.cosh, np.cosh, -88, 88),
        ("tanh", nd.tanh, torch.tanh, np.tanh, -20, 20),
        ("arcsinh", nd.arcsinh, torch.asinh, np.arcsinh, -1e18, 1e18),
        ("arccosh", nd.arccosh, torch.acosh, np.arccosh, 1, 1e18),
        ("arctanh", nd.arctanh, torch.atanh, np.arctanh, -1, 1),
        ("erf", nd.erf, torch.erf, special.erf, -6, 6),
        ("erfinv", nd.erfinv, torch.erfinv, special.erfinv, -1, 1),
        ("gamma", nd.gamma, None, special.gamma, -30, 35),
        ("gammaln", nd.gammaln, torch.lgamma, special.gammaln, -100, 1e30),
        ("sqrt", nd.sqrt, torch.sqrt, np.sqrt, 0, BIG),
        ("rsqrt", nd.rsqrt, torch.rsqrt, lambda x: 1 / np.sqrt(x), 1e-37, BIG),
        ("cbrt", nd.cbrt, None, np.cbrt, -BIG, BIG),
        ("rcbrt", nd.rcbrt, None, lambda x: 1 / np.cbrt(x), 1e-37, BIG),
        ("sigmoid", nd.sigmoid, torch.sigmoid, special.expit, -87, 87),
        ("softrelu", lambda x: nd.Activation(x, act_type="softrelu"), functional.softplus, softrelu, -87, 87),
        ("log_sigmoid", nd.log_sigmoid, functional.logsigmoid, lambda x: -softrelu(-x), -87, 87),
        ("elu", lambda x: nd.LeakyReLU(x, act_type="elu", slope=1.0), functional.elu, lambda x: np.where(x > 0, x, np.expm1(x)), -87, 87),
        ("selu", lambda x: nd.LeakyReLU(x, act_type="selu"), functional.selu,
         lambda x: 1.0507009873554804934193349852946 * np.where(x > 0, x, 1.6732632423543772848170429916717 * np.expm1(x)), -87, 87),
        ("gelu (above -1)", lambda x: nd.LeakyReLU(x, act_type="gelu"), functional.gelu, gelu_exact, -1, 87),
        ("softsign", nd.softsign, functional.softsign, lambda x: x / (1 + np.abs(x)), -1e30, 1e30),
        ("mish", nd.mish, functional.mish, lambda x: x * np.tanh(softrelu(x)), -80, 80),
    ]
    return table, of_torch


@part
def functions():
    table, of_torch = _functions()
    for name, ours, theirs, exact, low, high in table:
        x = samples(low, high)
        with np.errstate(all="ignore"):
            expected = exact(x.astype("float64"))
        mine = ulps(ours(nd.array(x)).asnumpy(), expected)
        yield f"{name}, ulps", mine, ulps(of_torch(theirs)(x), expected) if theirs else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS), help="of " + ", ".join(PARTS))
    parser.add_argument("--limit", type=float, help="fail where an error is more than so many times PyTorch's")
    args = parser.parse_args()
    torch.set_num_threads(1)
    beyond = []
    print("| what | mpgluon | PyTorch | ratio |\n| --- | --- | --- | --- |")
    for name in args.parts.split(","):
        for title, ours, theirs in PARTS[name]():
            ratio = ours / theirs if theirs else None
            print(f"| {title} | {ours:.2g} | {'' if theirs is None else f'{theirs:.2g}'} | {'' if ratio is None else f'{ratio:.2f}'} |", flush=True)
            if args.limit and ratio is not None and ratio > args.limit:
                beyond.append(title)
    if beyond:
        sys.exit(f"more than {args.limit:g} times PyTorch's error: {', '.join(beyond)}")


if __name__ == "__main__":
    main()
