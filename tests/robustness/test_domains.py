"""Parameters outside their domain: the constructor of the layer, optimizer or array raises an error
that names the parameter and its value."""

import inspect
import math

import pytest

import mpgluon as mx
from mpgluon import gluon, nd
from mpgluon.gluon import nn, rnn
from support.calls import raises


def _sizes(least, *names):
    return {name: (least - 1, 1.5, 2**63, "x", object()) for name in names}


def _numbers(*names):
    return {name: (math.nan, math.inf, "x", object(), None) for name in names}


def _fractions(*names):
    return {name: (-0.1, 1.1, math.nan, "x", object()) for name in names}


NONSENSE = {  # invalid values by parameter name, the same for all layers, losses and optimizers
    **_sizes(0, "units"),  # 0 is allowed, as in MXNet
    **_sizes(1, *"channels kernel_size strides dilation groups num_groups pool_size".split()),
    **_sizes(1, *"input_dim output_dim hidden_size num_layers hidden_channels factor".split()),
    **_sizes(1, "num_deformable_group", "num_devices", "i2h_kernel", "h2h_kernel", "max_update"),
    **_sizes(1, "i2h_dilate", "h2h_dilate", "hidden", "heads", "kv_heads", "head_dim"),
    **_sizes(0, *"in_units in_channels input_size projection_size padding output_padding".split()),
    **_sizes(0, "window"),
    **_sizes(0, "i2h_pad", "begin_num_update", "warmup_steps", "updates_per_epoch", "begin_epoch"),
    **{name: (1.5, "x", object()) for name in ("axis", "axes", "batch_axis")},
    **_fractions(*"rate dropout zoneout_outputs zoneout_states drop_inputs drop_states".split()),
    **_fractions("attention_dropout"),
    **_fractions("drop_outputs", "smoothing_parameter", "beta1", "beta2", "rho", "gamma1"),
    **{name: (-1, *values) for name, values in _numbers("epsilon", "eps").items()},
    **_numbers(*"wd rescale_grad wd_lh lamda lamda1 eta gamma2 slope scale".split()),
    **_numbers("sigma", "magnitude", "forget_bias", "base_lr", "factor", "pwr", "final_lr"),
    **_numbers("margin", "alpha", "schedule_decay", "warmup_begin_lr", "stop_factor_lr"),
    **{name: (-1, *values) for name, values in _numbers("epsilon2").items()},
    "epsilon1": (math.nan, math.inf, -1, "x"),
    "threshold": (math.nan, math.inf, 0, "x"),
    "beta2_decay": (math.nan, 0.5, "x"),
    "ns_coefficients": (3, (1, 2), (1, math.nan, 2), "abc"),
    "ns_steps": (-1, 1.5),
    "ns_dtype": ("int8", 3),
    "adjust_lr": ("none", 3),
    "momentum": (math.nan, math.inf, "x", None),
    "learning_rate": (math.nan, math.inf, -1, "x"),
    "clip_gradient": (math.nan, -1, "x"),
    "clip_weights": (math.nan, -1, "x"),
    "batch_scale": (0, math.nan, "x"),
    "weight": (math.nan, math.inf),
    "state_clip_min": (math.nan, "x"),
    "state_clip_max": (math.nan, "x"),
    "activation": ("rellu", 3),
    "recurrent_activation": ("rellu", 3),
    "layout": ("NCHWX", 3),
    "conv_layout": ("NCHWX", 3),
    "input_shape": (3, (3,), (3, -1, 2, 2)),
    "warmup_strategy": ([],),
    "approximate": ("sigmoid", 3),
    "offset": (math.nan, math.inf, "x"),
    "softcap": (math.nan, math.inf, -1, "x"),
    "qk_norm": (3, {"eps": 1}),
    "rotary": (3, {"bases": 1}),
    **_sizes(1, "experts", "k"),
    **_sizes(0, "shared", "group"),
    "router": ("hardmax", 3),
    "capacity": (0, -1, math.nan, "x"),
    "aux_loss": (-1, math.nan, "x"),
    "z_loss": (-1, math.nan, "x"),
    "balance": ("token", 3),
    "format": ("int3", 3),
}
BY_CLASS = {  # exceptions by class
    ("HuberLoss", "rho"): (0, -1, math.nan, "x"),
    ("Ftrl", "beta"): (math.nan, "x"),
    ("Swish", "beta"): (math.nan, "x"),
    ("FactorScheduler", "factor"): (math.nan, 1.5, "x"),
    ("MultiFactorScheduler", "factor"): (math.nan, 1.5, "x"),
    ("Orthogonal", "scale"): (math.nan, "x"),
    ("PReLU", "in_channels"): (0, 1.5),
    ("LSTMPCell", "projection_size"): (0, 1.5),
    ("LeakyReLU", "alpha"): (math.nan, -1, "x"),
    ("MultiHeadAttention", "scale"): (math.nan, math.inf, "x"),
    ("BatchNorm", "momentum"): (-0.1, 1.1, math.nan, "x"),
}
OTHER_TEXTS = ("alpha", "factor")  # errors that do not begin with "alpha must be"
UNCHECKED = set(  # names, functions, initial values and optional bounds
    "prefix params kwargs args function dtype scale_dtype base_cell l_cell r_cell op_name adj"
    " value init mode initializers label_layout label_format rand_type rnd_type factor_type"
    " warmup_mode step num_epochs warmup_epochs lower_bound upper_bound use_sequence_length"
    " h2r_weight_initializer count_include_pad flatten attention".split()
)
GIVEN = {
    "activation": "relu",
    "rate": 0.5,
    "base_cell": rnn.RNNCell(2),
    "function": "relu",
    "step": 3,
    "input_shape": (2, 8, 8),
}


BASES = (
    "LinearCrossEntropyLoss",
    "Block",
    "SymbolBlock",
    "BidirectionalCell",
    "ModifierCell",
    "ResidualCell",
)


def _classes():
    contrib = gluon.contrib
    for module in (nn, rnn, gluon.loss, contrib.nn, contrib.cnn, contrib.rnn):
        for name in sorted(set(dir(module))):
            found = getattr(module, name)
            if isinstance(found, type) and issubclass(found, gluon.Block) and name not in BASES:
                yield found
    optimizers = set(mx.optimizer.Optimizer.opt_registry.values()) - {mx.optimizer.Test}
    for found in sorted(optimizers, key=lambda found: found.__name__):
        if found.__module__.startswith(mx.optimizer.__name__):  # not those of tests
            yield found
    for name in "FactorScheduler MultiFactorScheduler PolyScheduler CosineScheduler".split():
        yield getattr(mx.lr_scheduler, name)
    for name in "Uniform Normal Orthogonal Xavier MSRAPrelu LSTMBias".split():
        yield getattr(mx.init, name)


def _parameters(found):
    parameters = dict(inspect.signature(found.__init__).parameters)
    del parameters["self"]
    return parameters


def _required(found):
    """Returns arguments that construct the class."""
    given = {
        name: GIVEN.get(name, 3)
        for name, one in _parameters(found).items()
        if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD
    }
    name = found.__name__
    if "base_cell" in given:
        given["base_cell"] = rnn.RNNCell(2)
    if "input_shape" in given:
        given["input_shape"] = (2,) + (8,) * int(name[4])
    if name == "MultiFactorScheduler":
        given["step"] = [3]
    return given


@pytest.mark.parametrize("found", list(_classes()), ids=lambda found: found.__name__)
@pytest.mark.filterwarnings("ignore:SyncBatchNorm")
def test_constructors_reject_invalid_values(found):
    """Passes invalid values to each parameter of each class."""
    given = _required(found)
    found(**given)
    defaults = {name: one.default for name, one in _parameters(found).items()}
    if issubclass(found, mx.optimizer.Optimizer):
        given_to_all = ("wd", "rescale_grad", "clip_gradient", "begin_num_update", "learning_rate")
        defaults.update(dict.fromkeys(given_to_all))
    for name, default in defaults.items():
        values = NONSENSE.get(name)
        for cls in found.__mro__:
            values = BY_CLASS.get((cls.__name__, name), values)
        if isinstance(default, bool):
            continue  # flags accept any value
        if values is None:
            assert name in UNCHECKED or name.endswith("initializer"), f"{name}: give it nonsense"
            continue
        for value in values:
            number = isinstance(value, (int, float)) and value != 3 and name not in OTHER_TEXTS
            kinds = (
                ValueError if number and value != 1.5 else (TypeError, ValueError, AssertionError)
            )
            with pytest.raises(kinds) as caught:
                found(**{**_required(found), name: value})
                raise RuntimeError(f"{found.__name__}({name}={value!r}) was made")
            text = str(caught.value)
            assert name.split("_")[-1] in text, (name, value)
            assert not number or f"{name} must be " in text and str(value) in text, text


def test_bounds_of_kernel_sizes_and_lamb_raise():
    raises(ValueError, r"kernel_size must be .*\(3, 0\)", lambda: nn.Conv2D(3, (3, 0)))
    raises(ValueError, "beta1 must be .*1", lambda: mx.optimizer.LAMB(beta1=1))


def test_groups_must_divide_channels():
    for layer in (nn.Conv2D, nn.Conv1DTranspose, gluon.contrib.cnn.DeformableConvolution):
        for channels, given in ((4, {}), (6, {"in_channels": 4})):
            raises(ValueError, "groups must divide", lambda: layer(channels, 3, groups=3, **given))


def test_invalid_reflection_padding_raises():
    raises(ValueError, "batch and channels", lambda: nn.ReflectionPad2D((0, 0, 1, 1, 1, 1, 1, 1)))
    raises(mx.MXNetError, "[Pp]ad", lambda: nn.ReflectionPad2D(3)(nd.zeros((1, 1, 3, 3))))


def test_sgd_accepts_any_momentum_that_mxnet_accepts():
    for momentum in (-0.5, 1.5, 0):
        mx.optimizer.SGD(momentum=momentum)


def test_nadam_schedule_is_bounded():
    """The cached schedule does not grow without bound."""
    nadam, weight = mx.optimizer.Nadam(begin_num_update=2**40), nd.ones(2)
    nadam.update(0, weight, nd.ones(2), nadam.create_state(0, weight))
    assert len(nadam._schedule) < 1000 and (weight.asnumpy() < 1).all()


LAWS = {
    "uniform": {"low": 0, "high": 1},
    "normal": {"loc": 0, "scale": 1},
    "gamma": {"alpha": 1, "beta": 1},
    "poisson": {"lam": 1},
    "generalized_negative_binomial": {"mu": 1, "alpha": 1},
}


@pytest.mark.parametrize("name, parameter", [(n, p) for n, ps in LAWS.items() for p in ps])
@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_distributions_reject_infinite_and_nan_parameters(name, parameter, value):
    for draw in (
        lambda **law: getattr(nd.random, name)(shape=(2,), **law).asnumpy(),
        lambda **law: getattr(nd.random, f"{name}_like")(nd.zeros(2), **law).asnumpy(),
    ):
        draw(**LAWS[name])
        with pytest.raises((mx.MXNetError, ValueError), match=parameter):
            draw(**{**LAWS[name], parameter: value})


def test_misplaced_names_raise_with_a_hint():
    raises(TypeError, "net.add", lambda: nn.Sequential(nn.Dense(1)))
    raises(AttributeError, "softmax", lambda: mx.sym.sofmax)
    raises(AttributeError, "gluon.data.DataLoader", lambda: gluon.DataLoader)
    raises(AttributeError, "mx.nd", lambda: nn.functional)
