"""Samples of the optimizer family, with float64 formulas as references."""

import numpy as np

from samples.base import Sample

_S = (3, 4)
_COMMON = {"rescale_grad": 0.5, "clip_gradient": 0.3}


def _clip(g, clip_gradient=-1, **params):
    return np.clip(g, -clip_gradient, clip_gradient) if clip_gradient >= 0 else g


def _grad(g, rescale_grad=1, **params):
    return _clip(rescale_grad * g, **params)


def _decayed(w, g, wd=0, rescale_grad=1, **params):
    return _clip(rescale_grad * g + wd * w, **params)


def sgd(w, g, lr, wd=0, **p):
    return (1 - lr * wd) * w - lr * _grad(g, **p)


def sgd_mom(w, g, m, lr, wd=0, momentum=0, **p):
    return w + momentum * m - lr * wd * w - lr * _grad(g, **p)


def nag(w, g, m, lr, wd=0, momentum=0, **p):
    new = momentum * m - lr * (_grad(g, **p) + wd * w)
    return w - momentum * m + (1 + momentum) * new


def adam(w, g, m, v, lr, beta1=0.9, beta2=0.999, epsilon=1e-8, **p):
    g = _decayed(w, g, **p)
    m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
    return w - lr * m / (np.sqrt(v) + epsilon)


def _unbiased(w, m, v, lr, mean_factor, epsilon, wd):
    return w - lr * (mean_factor * m / (np.sqrt(v) + epsilon) + wd * w)


def adamw_corrected(
    w, g, m, v, lr, wd=0, beta1=0.9, beta2=0.999, epsilon=1e-8, mean_factor=1, **p
):  # fmt: skip
    g = _grad(g, **p)
    m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
    return _unbiased(w, m, v, lr, mean_factor, epsilon, wd)


def amsgradw_corrected(
    w, g, m, v, u, lr, wd=0, beta1=0.9, beta2=0.999, epsilon=1e-8, mean_factor=1, **p
):  # fmt: skip
    g = _grad(g, **p)
    m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
    return _unbiased(w, m, np.maximum(u, v), lr, mean_factor, epsilon, wd)


def lion(w, g, m, lr, wd=0, beta1=0.9, beta2=0.99, **p):
    return w - lr * (np.sign(beta1 * m + (1 - beta1) * _grad(g, **p)) + wd * w)


def adamax(w, g, m, u, lr, beta1=0.9, beta2=0.999, **p):
    g = _decayed(w, g, **p)
    return w - lr * (beta1 * m + (1 - beta1) * g) / np.maximum(beta2 * u, np.abs(g))


def nadam(
    w, g, m, v, lr, gradient_factor, gradient_divisor, mean_factor, mean_divisor,
    variance_divisor, beta1=0.9, beta2=0.999, epsilon=1e-8, **p,
):  # fmt: skip
    g = _decayed(w, g, **p)
    m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
    step = gradient_factor * (g / gradient_divisor) + mean_factor * (m / mean_divisor)
    return w - lr * step / (np.sqrt(v / variance_divisor) + epsilon)


def adagrad(w, g, h, lr, wd=0, epsilon=1e-7, **p):
    g = _grad(g, **p)
    return w - lr * (g / np.sqrt(h + g * g + epsilon) + wd * w)


def rmsprop(w, g, n, lr, gamma1=0.95, epsilon=1e-8, clip_weights=-1, **p):
    g = _decayed(w, g, **p)
    result = w - lr * g / np.sqrt((1 - gamma1) * g * g + gamma1 * n + epsilon)
    return np.clip(result, -clip_weights, clip_weights) if clip_weights >= 0 else result


def rmspropalex(w, g, n, a, delta, lr, gamma1=0.95, gamma2=0.9, epsilon=1e-8, **p):
    g = _decayed(w, g, **p)
    n, a = (1 - gamma1) * g * g + gamma1 * n, (1 - gamma1) * g + gamma1 * a
    return w + gamma2 * delta - lr * g / np.sqrt(n - a * a + epsilon)


def ftrl(w, g, z, n, lr, lamda1=0.01, beta=1, wd=0, **p):
    g = _grad(g, **p)
    z = z + g - (np.sqrt(n + g * g) - np.sqrt(n)) * w / lr
    n = n + g * g
    return (np.sign(z) * lamda1 - z) / ((beta + np.sqrt(n)) / lr + wd) * (np.abs(z) > lamda1)


def ftml(
    w, g, d, v, z, lr, t, beta1=0.6, beta2=0.999, epsilon=1e-8, wd=0, rescale_grad=1, clip_grad=-1
):
    g = _clip(rescale_grad * g + wd * w, clip_grad)
    v = beta2 * v + (1 - beta2) * g * g
    new = (1 - beta1**t) / lr * (np.sqrt(v / (1 - beta2**t)) + epsilon)
    return -(beta1 * z + (1 - beta1) * g - (new - beta1 * d) * w) / new


def signsgd(w, g, lr, wd=0, **p):
    return (1 - lr * wd) * w - lr * np.sign(g)


def signum(w, g, m, lr, momentum=0, wd=0, wd_lh=0, **p):
    m = momentum * m - (1 - momentum) * (wd * w + _grad(g, **p))
    return (1 - lr * wd_lh) * w + lr * np.sign(m)


def lamb1(w, g, m, v, t, wd, beta1=0.9, beta2=0.999, epsilon=1e-6, bias_correction=True, **p):
    g = _grad(g, **p)
    m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
    if bias_correction:
        m, v = m / (1 - beta1**t), v / (1 - beta2**t)
    return m / (np.sqrt(v) + epsilon) + wd * w


def lamb2(w, g, r1, r2, lr, lower_bound=-1, upper_bound=-1):
    r1 = max(r1, lower_bound) if lower_bound >= 0 else r1
    r1 = min(r1, upper_bound) if upper_bound >= 0 else r1
    return w - (lr * r1 / r2 if r1 != 0 and r2 != 0 else lr) * g


def adamw(w, g, m, v, scale, lr, eta, wd=0, beta1=0.9, beta2=0.999, epsilon=1e-8, clip_gradient=-1):
    if not np.isfinite(scale) or scale == 0:
        return w
    g = _clip(g * scale, clip_gradient)
    m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
    return w - eta * (lr * m / (np.sqrt(v) + epsilon) + wd * w)


_POSITIVE = (0.1, 1)


def _rows(function, states=0, positive=(), dtypes=("float32", "float64"), **params):
    ranges = [None, None] + [_POSITIVE if k in positive else None for k in range(states)]
    kinds = (
        [params, dict(params, **_COMMON)]
        if "clip_grad" not in params and function is not ftml
        else [params]
    )
    rows = [
        Sample(
            [_S] * (2 + states),
            kind,
            reference=function,
            grad=False,
            ranges=ranges,
            dtypes=dtypes,
            rtol=2e-4,
            atol=1e-5,
            name=str(i),
        )
        for i, kind in enumerate(kinds)
    ]
    rows.append(
        Sample(
            [(0, 3)] * (2 + states),
            params,
            reference=function,
            grad=False,
            ranges=ranges,
            dtypes=dtypes,
            name="empty",
        )
    )
    return rows


def _mixed(function, states, **params):
    """Mixed precision: float16 weight and gradient, float32 states and copy."""
    rng = np.random.RandomState(5)
    arrays = [rng.uniform(-1, 1, _S).astype("float16") for _ in range(2)] + [
        rng.uniform(0, 1, _S).astype("float32") for _ in range(states + 1)
    ]

    def reference(w, g, *rest, **p):
        return function(rest[-1], g, *rest[:-1], **p)

    return [
        Sample(
            arrays,
            params,
            reference=reference,
            grad=False,
            dtypes=("float32",),
            rtol=2e-3,
            atol=2e-3,
        )
    ]


def _multi(
    function, states, lrs=(0.1, 0.2), wds=(0.0, 0.01), positive=False, preloaded=False, **params
):
    per = 2 + states

    def reference(*arrays, **p):
        given = {k: v for k, v in p.items() if k not in ("lrs", "wds", "num_weights")}
        return [
            function(*arrays[k * per : (k + 1) * per], lr=lrs[k], wd=wds[k], **given)
            for k in range(2)
        ]

    inputs = [(3, 4)] * per + [(700,)] * per
    ranges = ([None, None] + [_POSITIVE if positive else None] * states) * 2
    more = dict(params, num_weights=2)
    if preloaded:
        inputs, ranges = (
            inputs + [np.array(lrs, "float32"), np.array(wds, "float32")],
            ranges + [None, None],
        )
    else:
        more.update(lrs=lrs, wds=wds)
    return [
        Sample(
            inputs,
            more,
            reference=reference,
            grad=False,
            ranges=ranges,
            dtypes=("float32",),
            rtol=2e-4,
            atol=1e-5,
        )
    ]


def _multi_mixed(
    function, states, lrs=(0.1, 0.2), wds=(0.0, 0.01), positive=False, preloaded=False, **params
):
    rng, low = np.random.RandomState(6), 0.5 if positive else -1
    one = lambda: (
        [rng.uniform(-1, 1, _S).astype("float16") for _ in range(2)]
        + [rng.uniform(low, 1, _S).astype("float32") for _ in range(states)]
        + [rng.uniform(-1, 1, _S).astype("float32")]
    )
    arrays, per = one() + one(), 3 + states

    def reference(*a, **p):
        given = {k: v for k, v in p.items() if k not in ("lrs", "wds", "num_weights")}
        groups = [a[k * per : (k + 1) * per] for k in range(2)]
        return [
            function(group[-1], group[1], *group[2:-1], lr=lrs[k], wd=wds[k], **given)
            for k, group in enumerate(groups)
        ]

    more = dict(params, num_weights=2)
    if preloaded:
        arrays = arrays + [np.array(lrs, "float32"), np.array(wds, "float32")]
    else:
        more.update(lrs=lrs, wds=wds)
    return [
        Sample(
            arrays, more, reference=reference, grad=False, dtypes=("float32",), rtol=2e-3, atol=2e-3
        )
    ]


_NORMS = [np.array([v], "float32") for v in (2.0, 3.0)]

SAMPLES = {
    "sgd_update": _rows(sgd, lr=0.1, wd=0.01),
    "sgd_mom_update": _rows(sgd_mom, 1, lr=0.1, wd=0.01, momentum=0.9),
    "nag_mom_update": _rows(nag, 1, lr=0.1, wd=0.01, momentum=0.9),
    "adam_update": _rows(adam, 2, positive=(1,), lr=0.1, wd=0.01),
    "_sparse_adagrad_update": _rows(adagrad, 1, positive=(0,), lr=0.1),
    "rmsprop_update": _rows(rmsprop, 1, positive=(0,), lr=0.1, wd=0.01, clip_weights=0.8),
    "rmspropalex_update": [
        Sample(
            [_S] * 5,
            {"lr": 0.1, "wd": 0.01},
            reference=rmspropalex,
            grad=False,
            ranges=[None, None, (1, 2), (-0.1, 0.1), None],
            dtypes=("float32", "float64"),
            rtol=2e-4,
        )
    ],
    "ftrl_update": _rows(ftrl, 2, positive=(1,), lr=0.1, wd=0.01),
    "ftml_update": _rows(ftml, 3, positive=(0, 1), lr=0.1, wd=0.01, t=3),
    "signsgd_update": _rows(signsgd, lr=0.1, wd=0.01),
    "signum_update": _rows(signum, 1, lr=0.1, wd=0.01, momentum=0.9, wd_lh=0.1),
    "lamb_update_phase1": _rows(lamb1, 2, positive=(1,), t=2, wd=0.01),
    "lamb_update_phase2": [
        Sample([_S, _S] + _NORMS, {"lr": 0.1}, reference=lamb2, grad=False, dtypes=("float32",)),
        Sample(
            [_S, _S] + _NORMS,
            {"lr": 0.1, "upper_bound": 1.5},
            reference=lamb2,
            grad=False,
            dtypes=("float32",),
            name="bounded",
        ),
    ],
    "mp_sgd_update": _mixed(sgd, 0, lr=0.1, wd=0.01),
    "mp_sgd_mom_update": _mixed(sgd_mom, 1, lr=0.1, wd=0.01, momentum=0.9),
    "mp_nag_mom_update": _mixed(nag, 1, lr=0.1, wd=0.01, momentum=0.9),
    "mp_lamb_update_phase1": _mixed(lamb1, 2, t=2, wd=0.01),
    "mp_lamb_update_phase2": [
        Sample(
            [np.ones(_S, "float16"), np.full(_S, 0.5, "float32")]
            + _NORMS
            + [np.full(_S, 0.9, "float32")],
            {"lr": 0.1},
            grad=False,
            dtypes=("float32",),
            reference=lambda w, g, r1, r2, w32, lr: w32 - lr * 2 / 3 * g,
            rtol=2e-3,
        )
    ],
    "_adamw_update": [
        Sample(
            [_S] * 4 + [np.array([s], "float32")],
            {"lr": 0.1, "eta": 0.9, "wd": 0.01},
            reference=adamw,
            grad=False,
            ranges=[None, None, None, _POSITIVE, None],
            dtypes=("float32",),
            rtol=2e-4,
            name=str(s),
        )
        for s in (0.5, 0.0, np.inf)
    ],
    "_mp_adamw_update": [
        Sample(
            [
                np.ones(_S, "float16"),
                np.full(_S, 0.5, "float16"),
                np.zeros(_S, "float32"),
                np.ones(_S, "float32"),
                np.full(_S, 0.7, "float32"),
                np.array([0.5], "float32"),
            ],
            {"lr": 0.1, "eta": 0.9, "wd": 0.01},
            grad=False,
            dtypes=("float32",),
            rtol=2e-3,
            reference=lambda w, g, m, v, w32, s, **p: adamw(w32, g, m, v, s, **p),
        )
    ],
    "multi_sgd_update": _multi(sgd, 0),
    "multi_sgd_mom_update": _multi(sgd_mom, 1, momentum=0.9, **_COMMON),
    "multi_mp_sgd_update": _multi_mixed(sgd, 0),
    "multi_mp_sgd_mom_update": _multi_mixed(sgd_mom, 1, momentum=0.9),
    "preloaded_multi_sgd_update": _multi(sgd, 0, preloaded=True),
    "preloaded_multi_sgd_mom_update": _multi(sgd_mom, 1, preloaded=True, momentum=0.9),
    "preloaded_multi_mp_sgd_update": _multi_mixed(sgd, 0, preloaded=True),
    "preloaded_multi_mp_sgd_mom_update": _multi_mixed(sgd_mom, 1, preloaded=True, momentum=0.9),
    "_multi_adam_update": _multi(adam, 2, positive=True),
    "_multi_adamw_update": _multi(
        adamw_corrected, 2, positive=True, mean_factor=0.7, epsilon=0.01, **_COMMON
    ),
    "_multi_mp_adamw_update": _multi_mixed(
        adamw_corrected, 2, positive=True, mean_factor=0.7, epsilon=0.01
    ),
    "_multi_amsgradw_update": _multi(
        amsgradw_corrected, 3, positive=True, mean_factor=0.7, epsilon=0.01, **_COMMON
    ),
    "_multi_mp_amsgradw_update": _multi_mixed(
        amsgradw_corrected, 3, positive=True, mean_factor=0.7, epsilon=0.01
    ),
    "_multi_lion_update": _multi(lion, 1, **_COMMON),
    "_multi_mp_lion_update": _multi_mixed(lion, 1),
    "_multi_adamax_update": _multi(adamax, 2, positive=True, **_COMMON),
    "_multi_nadam_update": _multi(
        nadam,
        2,
        positive=True,
        gradient_factor=0.4,
        gradient_divisor=0.8,
        mean_factor=0.9,
        mean_divisor=0.6,
        variance_divisor=0.5,
    ),
    "_multi_rmsprop_update": _multi(rmsprop, 1, positive=True),
    "_multi_adagrad_update": _multi(adagrad, 1, positive=True),
    "_multi_nag_mom_update": _multi(nag, 1, momentum=0.9),
    "multi_lars": [
        Sample(
            [(4,)] * 4,
            {"eta": 0.01, "eps": 1e-8},
            grad=False,
            ranges=[_POSITIVE] * 4,
            dtypes=("float32",),
            reference=lambda lr, w, g, wd, eta, eps: (
                lr * eta * np.sqrt(w) / (np.sqrt(g) + wd * np.sqrt(w) + eps)
            ),
        )
    ],
    "multi_sum_sq": [
        Sample(
            [(3, 4), (5000,)],
            {"num_arrays": 2},
            reference=lambda a, b, **p: np.array([np.sum(a * a), np.sum(b * b)]),
            grad=False,
            dtypes=("float32", "float64"),
            rtol=1e-5,
        )
    ],
    "all_finite": [
        Sample([(3, 4)], {}, reference=lambda x: np.ones(1), grad=False),
        Sample(
            [np.array([1, np.inf, 2], "float32")],
            {},
            reference=lambda x: np.zeros(1),
            grad=False,
            dtypes=("float32",),
            name="infinite",
        ),
        Sample(
            [np.array([1, np.nan, 2], "float16")],
            {},
            reference=lambda x: np.zeros(1),
            grad=False,
            dtypes=("float16",),
            name="nan",
        ),
    ],
    "multi_all_finite": [
        Sample([(3, 4), (2,)], {"num_arrays": 2}, reference=lambda *x, **p: np.ones(1), grad=False),
        Sample(
            [(3, 4), np.array([np.nan], "float32")],
            {"num_arrays": 2},
            reference=lambda *x, **p: np.zeros(1),
            grad=False,
            dtypes=("float32",),
            name="nan",
        ),
    ],
    "_multi_scale": [
        Sample(
            [(3, 4), (2,), np.array([0.5], "float32")],
            {"num_arrays": 3},
            grad=False,
            dtypes=("float32",),
        )
    ],
    "reset_arrays": [Sample([(3, 4), (2,)], {"num_arrays": 2}, grad=False)],
}
