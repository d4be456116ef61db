"""mx.np.random and mx.npx.random: distributions, shapes, dtypes, seeds, gradients and errors."""

import doctest
import inspect
import warnings

import numpy as np
import pytest
from scipy import stats

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from support.compare import same_bits

random = mx.np.random
COUNT = 20000


def array(values, dtype="float32", ctx=None):
    return nd.array(values, dtype=dtype, ctx=ctx).as_np_ndarray()


class Sampler(gluon.HybridBlock):
    """Calls a sampler with its inputs as parameters."""

    def __init__(self, name, **options):
        super().__init__()
        self.sampler, self.options = getattr(random, name), options

    def hybrid_forward(self, F, *params):
        return self.sampler(*params, **self.options)


# Each distribution, with its parameters
CONTINUOUS = [
    ("uniform", (1, 3), stats.uniform(1, 2)),
    ("normal", (1, 3), stats.norm(1, 3)),
    ("lognormal", (0.5, 0.7), stats.lognorm(0.7, scale=np.exp(0.5))),
    ("laplace", (1, 2), stats.laplace(1, 2)),
    ("gumbel", (1, 2), stats.gumbel_r(1, 2)),
    ("logistic", (1, 2), stats.logistic(1, 2)),
    ("exponential", (2,), stats.expon(scale=2)),
    ("weibull", (2.5,), stats.weibull_min(2.5)),
    ("pareto", (3,), stats.lomax(3)),
    ("power", (3,), stats.beta(3, 1)),
    ("rayleigh", (2,), stats.rayleigh(scale=2)),
    ("gamma", (0.3, 2), stats.gamma(0.3, scale=2)),
    ("gamma", (5, 2), stats.gamma(5, scale=2)),
    ("chisquare", (3,), stats.chi2(3)),
    ("f", (5, 7), stats.f(5, 7)),
    ("beta", (0.5, 3), stats.beta(0.5, 3)),
    ("beta", (3, 2), stats.beta(3, 2)),
]
DISCRETE = [
    ("poisson", (4,), stats.poisson(4)),
    ("negative_binomial", (3, 0.4), stats.nbinom(3, 0.4)),
    ("negative_binomial", (2.5, 0.4), stats.nbinom(2.5, 0.4)),
    ("binomial", (1, 0.3), stats.binom(1, 0.3)),
    ("binomial", (10, 0.3), stats.binom(10, 0.3)),
    ("binomial", (1000, 0.003), stats.binom(1000, 0.003)),
    ("randint", (2, 9), stats.randint(2, 9)),
]


@pytest.mark.parametrize("name, params, law", CONTINUOUS)
def test_draws_have_the_distribution(name, params, law):
    """Kolmogorov-Smirnov tests with parameters as numbers and as arrays."""
    mx.random.seed(11)
    sampler = getattr(random, name)
    filled = [array(np.full(COUNT, value)) for value in params]
    for draws in (
        sampler(*params, size=COUNT),
        sampler(*filled),
        sampler(*params, size=COUNT, dtype="float64"),
        sampler(*params[:-1], filled[-1], size=COUNT, dtype="float16"),
    ):
        values = draws.asnumpy().astype("float64")
        if draws.dtype == "float16":  # a KS test would detect the rounding
            assert np.isclose(np.median(values), law.median(), rtol=0.05, atol=0.02)
        else:
            assert stats.kstest(values, law.cdf).pvalue > 1e-3
            if np.isfinite(law.stats("k")):
                assert abs(values.mean() - law.mean()) < 5 * law.std() / COUNT**0.5
    assert draws.dtype == "float16"


@pytest.mark.parametrize("name, params, law", DISCRETE)
def test_counts_have_the_distribution(name, params, law):
    """Chi-square tests with parameters as numbers and as arrays."""
    mx.random.seed(13)
    sampler = getattr(random, name)
    for draws in (
        sampler(*params, size=COUNT),
        sampler(*[array(np.full(COUNT, value)) for value in params], dtype="int32"),
    ):
        values = draws.asnumpy()
        assert values.dtype == (np.int32 if draws.dtype == "int32" else np.int64)
        expected = law.pmf(np.arange(values.max() + 1)) * COUNT
        common = expected > 10
        found = np.bincount(values, minlength=len(expected))
        statistic = ((found - expected)[common] ** 2 / expected[common]).sum()
        assert stats.chi2(common.sum() - 1).sf(statistic) > 1e-3
        assert expected[common].sum() > 0.99 * COUNT


@pytest.mark.parametrize(
    "name, params, theirs",
    [
        ("uniform", (1, 3), {}),
        ("normal", (1, 3), {}),
        ("gamma", (2, 3), {}),
        ("exponential", (2,), {}),
        ("poisson", (4,), {}),
        ("negative_binomial", (3, 0.5), {}),
        ("randint", (3, 1000), {"dtype": "int64"}),
    ],
)
def test_draws_are_those_of_nd(name, params, theirs):
    mx.random.seed(3)
    ours = [getattr(random, name)(*params, size=(3, 5)).asnumpy() for _ in range(2)]
    mx.random.seed(3)
    options = {"shape": (3, 5), **theirs}
    expected = [getattr(nd.random, name)(*params, **options).asnumpy() for _ in range(2)]
    assert np.array_equal(ours, expected)


@pytest.mark.parametrize("name, params, law", CONTINUOUS + DISCRETE)
def test_hybridized_draws_are_those_of_eager_calls(name, params, law):
    inputs = [array(np.full((4,), value)) for value in params]
    net = Sampler(name, size=(3, 4))
    mx.random.seed(5)
    eager = [net(*inputs).asnumpy() for _ in range(3)]
    net.hybridize()
    mx.random.seed(5)
    for values in eager:
        assert np.array_equal(net(*inputs).asnumpy(), values)
    assert not np.array_equal(eager[0], eager[1])


@pytest.mark.parametrize("size", [(), (1,), (2, 3), (4, 0, 5), 6, None])
@pytest.mark.parametrize("name, params, law", CONTINUOUS + DISCRETE)
def test_size_is_the_shape(name, params, law, size):
    expected = () if size is None else (size,) if isinstance(size, int) else size
    sampler = getattr(random, name)
    scalars = [array(value) for value in params]
    for draws in (sampler(*params, size=size), sampler(*scalars, size=size)):
        assert type(draws) is mx.np.ndarray and draws.shape == expected


def test_parameters_are_broadcast():
    low, high = array([[0], [10], [20]]), [0.5, 1]
    draws = random.uniform(low, low + array(high)).asnumpy()
    assert draws.shape == (3, 2) and (draws // 10 == [[0, 0], [1, 1], [2, 2]]).all()
    assert random.normal(low, 1, size=(5, 3, 2)).shape == (5, 3, 2)
    assert random.normal([0, 100], 1).asnumpy()[1] > 50
    assert random.normal(np.array([0, 100]), np.float32(1)).shape == (2,)
    assert np.abs(random.normal(low, 0.01).asnumpy() - [[0], [10], [20]]).max() < 0.1
    with pytest.raises(ValueError, match=r"shapes \(3, 1\) cannot be broadcast to \(2,\)"):
        random.normal(low, 1, size=2)
    with pytest.raises(ValueError, match=r"shapes \(3, 1\), \(2, 1\) cannot be broadcast to one"):
        random.normal(low, array([[1], [2]]))


def test_dtypes_and_out():
    for dtype in ("float16", "float32", "float64"):
        for name in ("uniform", "normal", "gumbel", "lognormal"):
            assert getattr(random, name)(0, 1, size=2, dtype=dtype).dtype == dtype
            assert getattr(random, name)(array([0]), 1, dtype=dtype).dtype == dtype
    assert random.rand(2, dtype="float64").dtype == random.randn(2, dtype=float).dtype == "float64"
    assert random.uniform().dtype == random.uniform(array([1], "float64"), 2).dtype == "float32"
    assert random.choice(3).dtype == random.multinomial(3, [1]).dtype == "int64"
    for dtype in ("float32", "float64"):
        out = array(np.full(3, -1.0), dtype)
        for name in ("uniform", "exponential", "gumbel", "beta"):
            mx.random.seed(2)
            params = (1, 2) if name in ("uniform", "beta", "gumbel") else (2,)
            assert getattr(random, name)(*params, out=out) is out
            mx.random.seed(2)
            drawn = getattr(random, name)(*params, size=3, dtype=dtype)
            assert np.array_equal(out.asnumpy(), drawn.asnumpy())
    with pytest.raises(mx.MXNetError, match=r"out is float32 \(2,\)"):
        random.gumbel(size=3, out=array([0, 0]))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("hybridized", [False, True])
@pytest.mark.parametrize(
    "name, count",
    [
        ("normal", 2),
        ("lognormal", 2),
        ("laplace", 2),
        ("gumbel", 2),
        ("logistic", 2),
        ("exponential", 1),
        ("weibull", 1),
        ("pareto", 1),
        ("power", 1),
        ("rayleigh", 1),
        ("uniform", 2),
    ],
)
def test_gradients_of_parameters(name, count, hybridized, dtype):
    """Compares them with finite differences of draws from one seed."""
    net = Sampler(name, size=(3, 2), dtype=dtype)
    if hybridized:
        net.hybridize()
    params = [array(np.array([0.7, 1.5]) + k, dtype) for k in range(count)]
    for param in params:
        param.attach_grad()
    mx.random.seed(5)
    with autograd.record():
        draws = net(*params)
    draws.backward()

    def total(values):
        mx.random.seed(5)
        inputs = [array(value, "float64") for value in values]
        return getattr(random, name)(*inputs, size=(3, 2), dtype=dtype).asnumpy().astype("float64")

    step = 1e-2 if dtype == "float32" else 1e-5
    for k, param in enumerate(params):
        points = [[p.asnumpy().astype("float64") for p in params] for _ in range(2)]
        points[0][k] -= step
        points[1][k] += step
        expected = (total(points[1]) - total(points[0])).sum(0) / (2 * step)
        assert np.allclose(param.grad.asnumpy(), expected, rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("hybridized", [False, True])
@pytest.mark.parametrize("name", ["uniform", "gamma"])
def test_recorded_draws_are_those_of_nd_and_gamma_has_a_gradient_by_its_scale(
    name, hybridized, dtype
):
    net = Sampler(name, size=(3, 2), dtype=dtype)
    if hybridized:
        net.hybridize()
    params = [array([0.5, 2.0]), array([3.0, 4.0])]
    for param in params:
        param.attach_grad()
    mx.random.seed(6)
    with autograd.record():
        draws = net(*params)
    draws.backward()
    mx.random.seed(6)
    wide = [nd.array(np.broadcast_to(p.asnumpy(), (3, 2)), dtype="float32") for p in params]
    expected = getattr(nd.random, name)(*wide, dtype=dtype).asnumpy()
    same_bits(draws.asnumpy(), expected)
    if name == "gamma":
        scale = expected.astype("float64").sum(0) / params[1].asnumpy()
        assert np.allclose(params[1].grad.asnumpy(), scale, rtol=2e-3)
        assert (params[0].grad.asnumpy() == 0).all()


@pytest.mark.parametrize("name", ["beta", "f", "chisquare", "poisson"])
def test_gradients_of_other_parameters_are_zero(name):
    params = [array([1.0, 2.0]) for _ in range(1 if name in ("chisquare", "poisson") else 2)]
    for param in params:
        param.attach_grad()
    with autograd.record():
        draws = getattr(random, name)(*params, dtype="float32") * params[0]
    draws.backward()
    assert np.array_equal(params[0].grad.asnumpy(), (draws / params[0].detach()).asnumpy())
    assert all((param.grad.asnumpy() == 0).all() for param in params[1:])


def test_small_parameters_of_beta_do_not_underflow():
    draws = random.beta(0.001, 0.001, size=2000).asnumpy()
    assert np.isfinite(draws).all() and abs(draws.mean() - 0.5) < 0.05
    draws = random.dirichlet([0.001] * 3, size=500).asnumpy()
    assert draws.shape == (500, 3) and np.allclose(draws.sum(1), 1)


def test_dirichlet_has_its_moments():
    mx.random.seed(1)
    alpha = np.array([[1, 2, 3], [0.5, 0.5, 4]])
    draws = random.dirichlet(array(alpha), size=COUNT).asnumpy()
    law = [stats.dirichlet(row) for row in alpha]
    assert np.allclose(draws.mean(0), [each.mean() for each in law], atol=0.01)
    assert np.allclose(draws.var(0), [each.var() for each in law], atol=0.005)


def test_binomial_at_its_limits():
    assert random.binomial(10, [0, 1]).asnumpy().tolist() == [0, 10]
    assert random.binomial(0, 0.5, size=3).asnumpy().tolist() == [0, 0, 0]
    assert random.binomial(array([0, 1, 5], "int32"), 1).asnumpy().tolist() == [0, 1, 5]
    draws = random.binomial(array([2**31 - 1] * 100, "int64"), 0.5).asnumpy()
    assert np.abs((draws - 2**30) / 2**14.5).max() < 5


def test_multinomial_counts():
    mx.random.seed(1)
    chances = [0.1, 0.2, 0.0, 0.7]
    for pvals in (chances, array(chances), np.array(chances)):
        counts = random.multinomial(1000, pvals, size=(50, 2)).asnumpy()
        assert counts.shape == (50, 2, 4) and (counts.sum(-1) == 1000).all()
        assert np.allclose(counts.mean((0, 1)), np.array(chances) * 1000, atol=8)
        assert (counts[..., 2] == 0).all()
    assert random.multinomial(7, chances).shape == (4,)
    assert random.multinomial(0, chances).asnumpy().tolist() == [0] * 4
    assert random.multinomial(7, []).shape == (0,)
    assert random.multinomial(7, array([]), size=(2, 0)).shape == (2, 0, 0)
    for wrong in ([0.7, 0.7], [-0.1, 1.1]):
        with pytest.raises(ValueError, match="sum must be at most 1"):
            random.multinomial(3, wrong)
    with pytest.raises(ValueError, match="one dimension"):
        random.multinomial(3, [[1.0]])


def test_multivariate_normal_has_its_moments():
    mx.random.seed(1)
    cov = np.array([[2, 1.5], [1.5, 3]])
    draws = random.multivariate_normal([1, 2], cov, size=COUNT).asnumpy()
    assert np.allclose(draws.mean(0), [1, 2], atol=0.05)
    assert np.allclose(np.cov(draws.T), cov, atol=0.1)
    singular = random.multivariate_normal([0, 0], [[1, 1], [1, 1]], size=100).asnumpy()
    assert np.allclose(singular[:, 0], singular[:, 1], atol=1e-3)
    batch = array([np.eye(2), 4 * cov])
    draws = random.multivariate_normal(array([1, 2]), batch, size=COUNT).asnumpy()
    assert draws.shape == (COUNT, 2, 2)
    assert np.allclose(np.cov(draws[:, 0].T), np.eye(2), atol=0.1)
    assert np.allclose(np.cov(draws[:, 1].T), 4 * cov, atol=0.4)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("size", [None, 1, (), (2, 3), (2, 0)])
def test_multivariate_normal_broadcasts(size, dtype):
    shape = () if size is None else (size,) if isinstance(size, int) else size
    for mean, cov, batch in [
        ((2,), (2, 2), ()),
        ((3, 2), (2, 2), (3,)),
        ((2,), (3, 2, 2), (3,)),
        ((3, 2), (4, 3, 2, 2), (4, 3)),
    ]:
        params = array(np.ones(mean), dtype), array(np.broadcast_to(np.eye(2), cov), dtype)
        net = Sampler("multivariate_normal", size=size)
        for _ in range(2):
            assert net(*params).shape == (*shape, *batch, 2)
            net.hybridize()
    with pytest.raises(ValueError, match=r"cov \(..., n, n\), but they are \(2,\) and \(3, 3\)"):
        random.multivariate_normal([0, 0], np.eye(3))


def test_choice():
    mx.random.seed(1)
    assert random.choice(5).shape == () and random.choice(5, (2, 3)).shape == (2, 3)
    assert sorted(random.choice(6, 6, replace=False).asnumpy()) == list(range(6))
    items = array([1, 2, 3])
    assert set(random.choice(items, 100).asnumpy()) == {1.0, 2.0, 3.0}
    assert set(random.choice(items, (50, 2), p=[0, 0.5, 0.5]).asnumpy().flat) == {2.0, 3.0}
    assert sorted(random.choice(items, 2, replace=False, p=array([0.5, 0, 0.5])).asnumpy()) == [
        1,
        3,
    ]
    assert random.choice([5, 6], 4).dtype == "int64"
    out = array([0, 0])
    assert random.choice(items, out=out) is out and set(out.asnumpy()) <= {1, 2, 3}
    counts = np.bincount(random.choice(4, COUNT, p=[0.1, 0.2, 0.3, 0.4]).asnumpy())
    assert np.allclose(counts / COUNT, [0.1, 0.2, 0.3, 0.4], atol=0.02)


def test_choice_without_replacement_draws_one_after_the_other():
    mx.random.seed(1)
    chances = np.array([0.1, 0.3, 0.6])
    pairs = np.zeros((3, 3))
    net = Sampler("choice", size=2, replace=False, p=array(chances))
    net.hybridize()
    for _ in range(3000):
        first, second = net(array([0, 1, 2])).asnumpy().astype(int)
        pairs[first, second] += 1
    expected = chances[:, None] * chances / (1 - chances[:, None]) * (1 - np.eye(3))
    assert np.allclose(pairs / 3000, expected, atol=0.03)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: random.choice(3, 4, replace=False), "4 of 3 elements without replacement"),
        (lambda: random.choice(3, p=[1]), r"p must have the shape \(3,\)"),
        (lambda: random.choice(0, 1), "must not be empty"),
        (lambda: random.choice(array([[1]])), "one dimension"),
        (lambda: random.normal(0, -1), "scale must not be negative, got -1"),
        (lambda: random.lognormal(sigma=-1), "sigma must not be negative"),
        (lambda: random.rayleigh(-1), "scale must not be negative"),
        (lambda: random.exponential(-1), "scale must not be negative"),
        (lambda: random.pareto(0), "a must be positive"),
        (lambda: random.power(-1), "a must be positive"),
        (lambda: random.weibull(0), "a must be positive"),
        (lambda: random.gamma(0, 1), "shape must be positive"),
        (lambda: random.gamma(array(1), 0), "scale must be positive"),
        (lambda: random.gamma(array(1), array(-1)).asnumpy(), "beta must not be negative"),
        (lambda: random.gamma(array([1, 0])).asnumpy(), "element 1"),
        (lambda: random.f(array(-1), 0), "dfden must be positive, got 0"),
        (lambda: random.poisson(-1), "lam must be from 0 to 9.2e18"),
        (lambda: random.poisson(1e30), "lam must be from 0 to 9.2e18"),
        (lambda: random.negative_binomial(3, 0), "p must be above 0"),
        (
            lambda: random.choice(3, 3, replace=False, p=[0.5, 0.5, 0]),
            "cannot draw 3 elements without replacement, because p is above 0 for 2",
        ),
        (
            lambda: random.choice(3, 3, replace=False, p=array([0.5, 0.5, 0])).asnumpy(),
            "must not be negative",
        ),
        (lambda: random.multivariate_normal(array([0, 0]), array([[-1, 0], [0, -1]])), "sigma"),
        (lambda: random.multivariate_normal(array([0, 0]), array([[4, 0], [0, -1]])), "element 0"),
        (lambda: random.binomial(3, 1.5), "p must be from 0 to 1"),
        (lambda: random.binomial(3, array([0.5, 1.5])).asnumpy(), "p must be from 0 to 1"),
        (lambda: random.uniform("low"), "low must be a number or an array, got str"),
        (lambda: mx.npx.random.bernoulli(2), "prob must be from 0 to 1"),
        (lambda: mx.npx.random.bernoulli(array([0, -0.1])).asnumpy(), "element 1"),
        (lambda: mx.npx.random.bernoulli(array([1.1])).asnumpy(), "element 0"),
        (lambda: mx.npx.random.bernoulli(), "either prob or logit"),
        (lambda: mx.npx.random.bernoulli(0.5, 0.5), "either prob or logit"),
        (lambda: random.normal(array([0]), 1, ctx=mx.cpu(1)), r"loc is on cpu\(0\)"),
        (
            lambda: random.multivariate_normal([0], array([[1]]), ctx=mx.cpu(1)),
            r"multivariate_normal: cov is on cpu\(0\)",
        ),
        (lambda: random.seed("a"), "must be an integer"),
        (lambda: random.shuffle(array(1)), "at least one dimension"),
    ],
)
def test_invalid_arguments_raise_value_errors(call, message):
    with pytest.raises(ValueError, match=message):
        result = call()
        if result is not None:
            result.asnumpy()


# Samplers with valid parameters. Each parameter in turn gets the invalid values.
CHECKED = [
    ("normal", [0, 1], {1: (-1, np.nan)}),
    ("lognormal", [0, 1], {1: (-1,)}),
    ("laplace", [0, 1], {1: (-1,)}),
    ("gumbel", [0, 1], {1: (-1,)}),
    ("logistic", [0, 1], {1: (-1,)}),
    ("exponential", [1], {0: (-1, np.nan)}),
    ("rayleigh", [1], {0: (-1,)}),
    ("weibull", [1], {0: (0, -1, np.nan)}),
    ("pareto", [1], {0: (0, -1)}),
    ("power", [1], {0: (0, -1)}),
    ("uniform", [0, 1], {0: (2, np.nan)}),
    ("gamma", [1, 1], {0: (0, -0.5), 1: (0, -0.5)}),
    ("chisquare", [1], {0: (0, -0.5)}),
    ("f", [1, 1], {0: (0, -0.5), 1: (0, -0.5)}),
    ("beta", [1, 1], {0: (0, -0.5, -3, np.nan), 1: (0, -0.5, -3)}),
    ("dirichlet", [1], {0: (0, -0.5, -3)}),
    ("poisson", [1], {0: (-1, np.nan, 1e19, np.inf)}),
    ("negative_binomial", [1, 0.5], {0: (0, -1), 1: (0, -0.5, 1.5)}),
    ("binomial", [3, 0.5], {0: (-1, -5), 1: (-0.5, 1.5)}),
]


@pytest.mark.parametrize("hybridized", [False, True])
@pytest.mark.parametrize("name, params, invalid", CHECKED, ids=[case[0] for case in CHECKED])
def test_elements_of_parameters_are_checked_when_drawn(name, params, invalid, hybridized):
    net = Sampler(name)
    if hybridized:
        net.hybridize()
    arrays = [array([value] * 3) for value in params]
    assert np.isfinite(net(*arrays).asnumpy()).all()
    for position, values in invalid.items():
        for value in values:
            wrong = list(arrays)
            wrong[position] = array([params[position], params[position], value])
            with pytest.raises(ValueError, match="element 2"):
                net(*wrong).asnumpy()


def test_checks_of_parameters_draw_no_numbers():
    for name, params, _ in CHECKED:
        mx.random.seed(3)
        getattr(random, name)(*[array([value] * 2) for value in params])
        after = mx.random.get_state()
        mx.random.seed(3)
        getattr(random, name)(*[np.full(2, value) for value in params])
        assert after == mx.random.get_state(), name


def test_arrays_of_nd_and_other_dtypes_raise_type_errors():
    with pytest.raises(TypeError, match="loc is an array of mx.nd; convert it with x.as_np"):
        random.normal(nd.ones(2))
    for dtype in ("int8", "uint8", "float32"):
        with pytest.raises(TypeError, match=f"dtype must be int32 or int64, got {dtype}"):
            random.randint(3, dtype=dtype)
    with pytest.raises(TypeError, match="must be an array of mx.np, not list"):
        random.shuffle([1, 2])


def test_randint_of_arrays():
    draws = random.randint(array([0, 10], "int32"), array([[5], [11]], "int32") + 0).asnumpy()
    assert draws.shape == (2, 2) and 0 <= draws[0, 0] < 5
    with pytest.raises(mx.MXNetError, match="low must be below high"):
        random.randint(5, 5)
    assert set(random.randint(2, size=100).asnumpy()) == {0, 1}
    large = random.randint(2**40, 2**40 + 2, size=50).asnumpy()
    assert set(large) == {2**40, 2**40 + 1}


def test_shuffle_is_in_place():
    mx.random.seed(3)
    x = array(np.arange(12).reshape(4, 3))
    view = x[1]
    random.shuffle(x)
    rows = x.asnumpy()
    assert not np.array_equal(rows, np.arange(12).reshape(4, 3))
    assert np.array_equal(np.sort(rows[:, 0]), [0, 3, 6, 9])
    assert np.array_equal(rows - rows[:, :1], [[0, 1, 2]] * 4)
    assert np.array_equal(view.asnumpy(), rows[1])
    random.shuffle(array(np.zeros((0, 2))))
    with autograd.record(), pytest.raises(mx.MXNetError, match="np.random.permutation"):
        random.shuffle(x)
    net = Sampler("shuffle")
    net.hybridize()
    with pytest.raises(mx.MXNetError, match="np.random.permutation"):
        net(x)


def test_permutation():
    mx.random.seed(3)
    assert sorted(random.permutation(5).asnumpy()) == list(range(5))
    assert sorted(random.permutation([5, 6, 7]).asnumpy()) == [5, 6, 7]
    x = array([1, 2, 3])
    x.attach_grad()
    for net in (random.permutation, Sampler("permutation")):
        if net is not random.permutation:
            net.hybridize()
        with autograd.record():
            y = net(x) * array([1, 10, 100])
        y.backward()
        assert sorted(x.grad.asnumpy()) == [1, 10, 100]
        assert (x.grad * x).sum().item() == y.sum().item()
    mx.random.seed(4)
    ours = random.permutation(x).asnumpy()
    mx.random.seed(4)
    assert np.array_equal(ours, nd.random.shuffle(nd.array([1, 2, 3])).asnumpy())


def test_bernoulli():
    mx.random.seed(1)
    draws = mx.npx.random.bernoulli(0.3, size=COUNT)
    assert draws.dtype == "float32" and abs(draws.asnumpy().mean() - 0.3) < 0.02
    draws = mx.npx.random.bernoulli(logit=array([-100, 0, 100]), size=(COUNT, 3), dtype="bool")
    assert draws.dtype == "bool"
    assert np.allclose(draws.asnumpy().mean(0), [0, 0.5, 1], atol=0.02)
    draws = mx.npx.random.bernoulli(array([0, 1, 0.5]), size=(COUNT, 3), dtype="int32")
    assert np.allclose(draws.asnumpy().mean(0), [0, 1, 0.5], atol=0.02)


def test_batches_of_draws():
    mean = array([1, 100])
    mean.attach_grad()
    with autograd.record():
        draws = mx.npx.random.normal_n(mean, 0.1, batch_shape=(5, 3))
    draws.backward()
    assert draws.shape == (5, 3, 2) and np.allclose(draws.asnumpy()[..., 1], 100, atol=1)
    assert mean.grad.asnumpy().tolist() == [15, 15]
    draws = mx.npx.random.uniform_n(mean, 200, 4).asnumpy()
    assert draws.shape == (4, 2) and (draws[:, 1] >= 100).all()
    assert mx.npx.random.uniform_n().shape == ()
    indices, logs = mx.npx.random.categorical(array([[0, 1], [1, 0]]), 3, get_prob=True)
    assert indices.asnumpy().tolist() == [[1, 1, 1], [0, 0, 0]] and (logs.asnumpy() == 0).all()


def test_draws_on_another_device():
    place = mx.cpu(1)
    mx.random.seed(1)
    here = random.normal(size=3).asnumpy()
    mx.random.seed(1)
    there = random.normal(size=3, ctx=place)
    assert there.context == place and np.array_equal(there.asnumpy(), here)
    loc = array([1, 2], ctx=place)
    chances = array([0.5, 0.5], ctx=place)
    for draws in (
        random.gumbel(size=2, device=place),
        random.normal(loc, [1, 2]),
        random.uniform(loc, 3, size=(2, 2)),
        random.beta(1, loc),
        random.poisson(loc),
        random.binomial(3, chances),
        random.randint(3, size=2, ctx=place),
        random.choice(loc, 3, p=[0.5, 0.5]),
        random.choice(2, 2, replace=False, p=chances),
        random.choice(3, 2, replace=False, ctx=place),
        random.permutation(loc),
        random.permutation(3, ctx=place),
        random.multinomial(3, chances, size=2),
        random.multivariate_normal(loc, np.eye(2), size=2),
        random.dirichlet(loc),
        mx.npx.random.bernoulli(chances),
        mx.npx.random.normal_n(loc, 1, 3),
    ):
        assert draws.context == place and draws.asnumpy().size


@pytest.mark.parametrize("module", [mx.np.random, mx.npx.random])
def test_examples_run(module):
    failures = []
    for name in module.__all__:
        text = inspect.getdoc(getattr(module, name))
        assert ">>>" in text, name
        test = doctest.DocTestParser().get_doctest(
            text, {"mx": mx, "np": mx.np, "npx": mx.npx}, name, None, 0
        )
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            doctest.DocTestRunner(verbose=False).run(test, out=failures.append)
    assert not failures, "".join(failures)


@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_choice_refuses_arrays_of_probabilities_with_a_sum_above_1(dtype, replace):
    with pytest.raises(ValueError):
        random.choice(3, 2, replace, array([0.5, 0.5, 0.5], dtype)).asnumpy()
    for p in (np.ones(7) / 7, np.ones(1000) / 1000, [0.3, 0.3, 0.3]):
        assert random.choice(len(p), 2, replace, array(p, dtype)).shape == (2,)


@pytest.mark.parametrize(
    "name", ["uniform", "normal", "lognormal", "laplace", "gumbel", "logistic"]
)
def test_parameters_must_not_be_nan(name):
    for params in ((np.nan, 1), (0, np.nan)):
        with pytest.raises(ValueError, match=rf"random.{name}: \w+ must not be NaN"):
            getattr(random, name)(*params)
    with pytest.raises(TypeError, match=rf"random.{name}: out must be an array of mx.np, got int"):
        getattr(random, name)(out=3)
