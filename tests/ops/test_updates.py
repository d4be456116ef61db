"""Update ops write weights and states in place; random draws depend only on seed, call and
position."""

import numpy as np
import pytest

import mpgluon as mx

nd = mx.nd


def _arrays(*shapes, dtype="float32"):
    random = np.random.RandomState(2)
    return [nd.array(random.uniform(0.1, 1, s), dtype=dtype) for s in shapes]


def test_adam_writes_weight_and_states():
    w, g, m, v = _arrays(*[(40, 50)] * 4)
    before = [a.asnumpy().astype("float64") for a in (w, g, m, v)]
    result = nd.adam_update(w, g, m, v, out=w, lr=0.1)
    assert result is w
    mean, square = 0.9 * before[2] + 0.1 * before[1], 0.999 * before[3] + 0.001 * before[1] ** 2
    np.testing.assert_allclose(m.asnumpy(), mean, rtol=1e-5)
    np.testing.assert_allclose(v.asnumpy(), square, rtol=1e-5)
    np.testing.assert_allclose(
        w.asnumpy(), before[0] - 0.1 * mean / (np.sqrt(square) + 1e-8), rtol=1e-5, atol=1e-6
    )
    assert (g.asnumpy() == before[1].astype("float32")).all()


@pytest.mark.parametrize(
    "name, states, options",
    [
        ("sgd_mom_update", 1, {"momentum": 0.9}),
        ("nag_mom_update", 1, {"momentum": 0.9}),
        ("adam_update", 2, {}),
        ("rmsprop_update", 1, {}),
    ],
)
def test_multi_weight_update_is_bitwise_equal_to_single_updates(name, states, options):
    many = {"sgd_mom_update": "multi_sgd_mom_update"}.get(name, "_multi_" + name)
    shapes = [(3, 4), (700,), (50, 41), (1,)]
    singles = [_arrays(*[s] * (2 + states)) for s in shapes]
    groups = [_arrays(*[s] * (2 + states)) for s in shapes]
    lrs, wds = [0.1, 0.2, 0.3, 0.4], [0.0, 0.1, 0.0, 0.01]
    for arrays, lr, wd in zip(singles, lrs, wds):
        getattr(nd, name)(*arrays, out=arrays[0], lr=lr, wd=wd, **options)
    op = getattr(nd, many, None) or mx._core.ops()[many]
    op(
        *[a for group in groups for a in group],
        out=[group[0] for group in groups],
        num_weights=4,
        lrs=lrs,
        wds=wds,
        **options,
    )
    for one, other in zip(singles, groups):
        for k, (a, b) in enumerate(zip(one, other)):
            assert a.asnumpy().tobytes() == b.asnumpy().tobytes(), k


def test_mixed_precision_update_keeps_float32_copy():
    w, g = _arrays((30,), (30,), dtype="float16")
    w32 = w.astype("float32")
    mom = nd.zeros((30,))
    for _ in range(3):
        nd.mp_sgd_mom_update(w, g, mom, w32, out=w, lr=0.01, momentum=0.9)
    assert w32.dtype == np.float32 and (w.asnumpy() == w32.asnumpy().astype("float16")).all()
    assert (mom.asnumpy() < 0).all()


def test_reset_arrays_writes_zeros():
    a, b = nd.ones((3,)), nd.ones((2, 2), dtype="float64")
    nd.reset_arrays(a, b, num_arrays=2)
    assert not a.asnumpy().any() and not b.asnumpy().any()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "name, params, mean, deviation",
    [
        ("uniform", {"low": -1.0, "high": 3.0}, 1.0, 4 / 12**0.5),
        ("normal", {"loc": 2.0, "scale": 0.5}, 2.0, 0.5),
        ("exponential", {"lam": 2.0}, 0.5, 0.5),
        ("gamma", {"alpha": 0.5, "beta": 2.0}, 1.0, 2**0.5),
        ("gamma", {"alpha": 9.0, "beta": 0.5}, 4.5, 1.5),
        ("poisson", {"lam": 4.0}, 4.0, 2.0),
        ("poisson", {"lam": 400.0}, 400.0, 20.0),
        ("negative_binomial", {"k": 5, "p": 0.5}, 5.0, 10**0.5),
        ("generalized_negative_binomial", {"mu": 3.0, "alpha": 0.5}, 3.0, 7.5**0.5),
    ],
)
def test_random_draws_have_expected_moments(name, params, mean, deviation, dtype):
    count = 40000
    values = (
        mx._core.ops()["_random_" + name](shape=(count,), dtype=dtype, **params)
        .asnumpy()
        .astype("float64")
    )
    assert abs(values.mean() - mean) < 5 * deviation / count**0.5
    assert abs(values.std() - deviation) < 0.06 * deviation


def test_draws_repeat_with_seed_and_do_not_depend_on_shape():
    for draw in (nd.random.uniform, nd.random.normal):
        mx.random.seed(7)
        long = draw(shape=(3000,)).asnumpy()
        mx.random.seed(7)
        short = draw(shape=(37, 3)).asnumpy().reshape(-1)
        assert (long[:111] == short).all()
        assert (draw(shape=(37, 3)).asnumpy().reshape(-1) != short).any()


def test_dropout_keeps_its_share_and_scales():
    data = nd.ones((200, 500))
    with mx.autograd.train_mode():
        out = nd.Dropout(data, p=0.3).asnumpy()
    assert set(np.unique(out)) == {np.float32(0), np.float32(1 / 0.7)}
    assert abs((out == 0).mean() - 0.3) < 0.01


def test_dropout_axes_share_one_mask():
    with mx.autograd.train_mode():
        out = nd.Dropout(nd.ones((4, 50, 6)), p=0.5, axes=(0, 2)).asnumpy()
    assert (out == out[:1, :, :1]).all() and 0 < (out == 0).mean() < 1


def test_shuffle_permutes_rows():
    data = np.arange(3000).reshape(1000, 3)
    out = nd.shuffle(nd.array(data, dtype="int64")).asnumpy()
    assert (out != data).any() and (out[np.argsort(out[:, 0])] == data).all()


def test_multinomial_frequencies_match_probabilities():
    chances = np.array([[0.1, 0.2, 0.7], [0.5, 0.5, 0.0]])
    draws = nd.sample_multinomial(nd.array(chances), shape=(20000,)).asnumpy()
    for row, wanted in zip(draws, chances):
        np.testing.assert_allclose(np.bincount(row, minlength=3) / 20000, wanted, atol=0.02)


def test_randint_stays_within_bounds():
    draws = nd.random.randint(-3, 4, shape=(5000,)).asnumpy()
    assert draws.dtype == np.int32 and draws.min() == -3 and draws.max() == 3


@pytest.mark.parametrize(
    "draw",
    [
        lambda: mx.nd.random.exponential(-1.0, shape=(2,)),
        lambda: mx.nd.random.gamma(-1.0, 1.0, shape=(2,)),
        lambda: mx.nd.random.poisson(-1.0, shape=(2,)),
        lambda: mx.nd.random.negative_binomial(1, 1.5, shape=(2,)),
        lambda: mx.nd.random.generalized_negative_binomial(-1.0, 1.0, shape=(2,)),
    ],
)
def test_draw_with_parameter_out_of_range_is_refused(draw):
    with pytest.raises(mx.base.MXNetError, match="is outside its range 0"):
        draw()


def test_multi_lamb_update_matches_mxnet():
    """Compares with values from MXNet 1.9.1."""
    weights = [mx.nd.array([3.0, 4.0]), mx.nd.array([-1.0])]
    grads = [mx.nd.array([1.0, -2.0]), mx.nd.array([0.5])]
    mean, var = ([mx.nd.full(w.shape, n) for w in weights] for n in (0.1, 0.2))
    options = {"step_count": [2, 3], "lrs": [0.1, 0.2], "wds": [0.01, 0.1], "upper_bound": 2}
    copies = [w.copy() for w in weights]
    halves = [[a.astype("float16") for a in arrays] for arrays in (weights, grads)]
    states = [[a.copy() for a in arrays] for arrays in (mean, var)]
    mx.nd.contrib.multi_lamb_update(weights, grads, mean, var, out=weights, **options)
    np.testing.assert_allclose(
        weights[0].asnumpy(), [2.8017613887786865, 4.02648401260376], rtol=1e-5
    )
    np.testing.assert_allclose(weights[1].asnumpy(), [-0.800000011920929], rtol=1e-5)
    mx.nd.contrib.multi_mp_lamb_update(*halves, *states, copies, out=halves[0], **options)
    for copy, half, weight in zip(copies, halves[0], weights):
        np.testing.assert_allclose(copy.asnumpy(), weight.asnumpy(), rtol=1e-5)
        np.testing.assert_array_equal(half.asnumpy(), copy.astype("float16").asnumpy())


def test_contrib_adamw_variants_match_single_update():
    """One weight, several weights and float32 copies take the same step as the op.

    Each weight has its own rates.
    """
    rng = np.random.RandomState(0)

    def arrays(dtype="float32"):
        return [mx.nd.array(np.abs(rng.normal(size=(3,))), dtype=dtype) for _ in range(4)]

    options = {"beta1": 0.8, "clip_gradient": 0.5}
    for rescale in (0.5, mx.nd.array([0.5])):
        rng.seed(0)
        single = [arrays(), arrays()]
        for some, rate in zip(single, (0.1, 0.2)):
            assert (
                mx.nd.contrib.adamw_update(
                    *some, rescale, rate, 0.9, out=some[0], wd=rate / 10, **options
                )
                is some[0]
            )
        rng.seed(0)
        several = [list(column) for column in zip(arrays(), arrays())]
        mx.nd.contrib.multi_adamw_update(
            *several, rescale, [0.1, 0.2], [0.01, 0.02], [0.9, 0.9], out=several[0], **options
        )
        for k in range(4):
            for i in range(2):
                np.testing.assert_array_equal(several[k][i].asnumpy(), single[i][k].asnumpy())
        rng.seed(0)
        mixed = [list(column) for column in zip(arrays(), arrays())]
        halves = [[array.astype("float16") for array in column] for column in mixed[:2]]
        mx.nd.contrib.multi_mp_adamw_update(
            *halves,
            *mixed[2:],
            mixed[0],
            rescale,
            [0.1, 0.2],
            [0.01, 0.02],
            [0.9, 0.9],
            out=halves[0],
            **options,
        )
        for i in range(2):
            np.testing.assert_allclose(mixed[0][i].asnumpy(), single[i][0].asnumpy(), rtol=1e-3)
            np.testing.assert_allclose(halves[0][i].asnumpy(), mixed[0][i].asnumpy(), rtol=1e-3)


def test_batch_norm_with_relu_matches_separate_ops():
    x, ones, zeros = mx.nd.random.normal(shape=(2, 3, 4)), mx.nd.ones((3,)), mx.nd.zeros((3,))
    got = mx.nd.contrib.BatchNormWithReLU(x, ones, zeros, zeros.copy(), ones.copy(), eps=1e-3)
    np.testing.assert_array_equal(
        got.asnumpy(),
        np.maximum(
            mx.nd.BatchNorm(x, ones, zeros, zeros.copy(), ones.copy(), eps=1e-3).asnumpy(), 0
        ),
    )


def test_contrib_symbols_match_contrib_arrays():
    """Symbols have the same contrib functions as arrays."""
    x, ones, zeros = mx.nd.random.normal(shape=(2, 3, 4)), mx.nd.ones((3,)), mx.nd.zeros((3,))
    norm = mx.sym.contrib.BatchNormWithReLU(mx.sym.var("x"), name="norm", eps=1e-3)
    args, states = [x, ones, zeros], [zeros.copy(), ones.copy()]
    expected = mx.nd.contrib.BatchNormWithReLU(*args, *[s.copy() for s in states], eps=1e-3)
    got = norm.bind(mx.cpu(), args, aux_states=states).forward()[0]
    np.testing.assert_array_equal(got.asnumpy(), expected.asnumpy())

    arrays = [mx.nd.array([n, n / 2]) for n in (1, 10, 0.1, 0.2)]
    step = mx.sym.contrib.adamw_update(*[mx.sym.var(n) for n in "wgmv"], 0.5, lr=0.1, eta=0.9)
    copies = [a.copy() for a in arrays]
    got = step.bind(mx.cpu(), arrays[:2], aux_states=arrays[2:]).forward()[0]
    expected = mx.nd.contrib.adamw_update(*copies, 0.5, lr=0.1, eta=0.9)
    for one, other in zip([got, *arrays[2:]], [expected, *copies[2:]]):
        np.testing.assert_array_equal(one.asnumpy(), other.asnumpy())

    close = mx.sym.contrib.allclose(mx.sym.var("a"), mx.sym.var("b"))
    same = close.bind(mx.cpu(), {"a": x, "b": x + 1e-9}).forward()[0]
    assert same.dtype == np.uint8 and same.shape == () and same.asscalar() == 1


def test_python_2_operator_names_work():
    x = mx.nd.array([4.0])
    assert x.__div__(2).asscalar() == 2 and x.__rdiv__(2).asscalar() == 0.5
    assert x.__nonzero__() is True and x.__idiv__(8) is x and x.asscalar() == 0.5


RATES = {"adamw": ["lrs", "wds", "etas"], "lamb": ["step_count", "lrs", "wds"]}


@pytest.mark.parametrize("name", [f"multi_{mp}{op}_update" for mp in ("", "mp_") for op in RATES])
@pytest.mark.parametrize("symbols", [False, True])
def test_multi_update_with_lists_of_different_length_is_refused(name, symbols):
    """Raises an error before anything is written, whichever list is shorter."""
    rates = RATES[name.split("_")[-2]]
    lists = ["weights", "grads", "mean", "var", *(["weights32"] if "mp_" in name else []), *rates]
    extra = {"rescale_grad": 1.0} if "adamw" in name else {}
    function = getattr((mx.sym if symbols else mx.nd).contrib, name)
    for short in (*lists, *([] if symbols else ["out"])):
        arrays = {
            key: [0.1] * 2
            if key in rates
            else [mx.sym.var(f"{key}{i}") if symbols else mx.nd.ones(3) for i in range(2)]
            for key in lists
        }
        before = dict(arrays)
        arrays["out"] = arrays["weights"]
        if symbols:
            del arrays["out"]
        arrays[short] = arrays[short][:1]
        with pytest.raises(ValueError, match=f"{short}: 1"):
            function(**arrays, **extra)
        for key in set(lists) - set(rates) - ({*lists} if symbols else set()):
            assert all((array.asnumpy() == 1).all() for array in before[key])
