"""Parameter values while a block is traced, and the inference of unknown shapes.

`current()` is None while blocks run eagerly. While a HybridBlock is traced, it is an object whose
method ``parameter(param, ctx)`` returns the traced array that represents that copy of the
parameter. There are three classes. `Discovery` creates an input for each requested copy, in the
first trace. `Binding` returns these inputs in later traces. `LateBinding` adds inputs on demand to
a program that consists of several parts (`mpgluon._internal.graph_breaks`).

A parameter whose shape is not known yet is passed to ``hybrid_forward`` as an `Unknown`, together
with an `InferringOps` for ``F``: the first operator that takes the `Unknown` as an input completes
its shape by the operator's own inference.
"""

import types

from ... import _core, ndarray as nd
from ..._internal import graph_breaks
from ...base import MXNetError, NotSupportedError
from ...ndarray._sparse.row_taps import has_row_gradient
from ..utils import shape_is_known


def current():
    """Returns the tracing in progress in this thread, or None."""
    return graph_breaks.thread.tracing


class _Parameters:
    """Base of the scopes that supply the parameters' arrays during a trace."""

    _replaced: dict | None = None  # (parameter, device) -> replacement for the array

    def parameter(self, param, ctx):
        """Returns the traced array of a parameter's copy on a device."""
        if self._replaced is not None and (param, ctx) in self._replaced:
            return self._replaced[param, ctx]
        return self._parameter(param, ctx)

    def replace(self, param, ctx, array):
        """Uses `array` as the parameter's copy on a device for the rest of the trace."""
        if self._replaced is None:
            self._replaced = {}
        self._replaced[param, ctx] = array


class _Tracing(_Parameters, _core.Scope):
    def _changes(self):
        return [(vars(graph_breaks.thread), "tracing", self)]


class Discovery(_Parameters, graph_breaks.Tracer):
    """The first trace of a block, before its parameters are known.

    It records the parameter copies that the block uses, in the order of first use, and the
    host operations that split the block. It also records the devices to which floating parameters
    move after the trace. An op whose output shape depends on values ends the trace with
    `graph_breaks.NeedsValues`. With `host_steps`, a tracer, host operations do not split the block.
    """

    def __init__(self, taps=None, host_steps=None):
        super().__init__({})
        self._host_steps = host_steps
        # Taps of parameters with row_sparse gradients. The argument `taps` is the class of the
        # taps, or None.
        self.taps = taps and taps(
            lambda _, rows: self.trace.new_input(rows.shape, rows.dtype, rows.context)
        )
        self.settled = {}  # parameter -> device
        self.used = {}  # (parameter, device) -> traced array
        self.splits = None  # (name, block path) of the first operation that splits the block

    def _changes(self):
        return [*super()._changes(), (vars(graph_breaks.thread), "tracing", self)]

    def _parameter(self, param, ctx):
        array = self.used.get((param, ctx))
        if array is None:
            array = self.trace.new_input(param.shape, param.dtype, ctx, param.is_numpy)
            self.used[param, ctx] = array
        if self.taps is not None and has_row_gradient(param):
            return self.taps.weight(param, ctx, array)
        return array

    def traced(self, inputs, outputs):
        """Returns a function that inlines this trace into another one, so the block need not run
        again. Its argument lists the arrays for `inputs` and for `used`, and it returns the arrays
        for `outputs`.

        Returns None if the block is split or has loops or branches. This class traces their bodies
        separately, so the other trace would differ from this one."""
        if self.splits or self.has_bodies:
            return None
        part = self._last_part(outputs)
        values = [self.trace.value(array) for array in (*inputs, *self.used.values())]
        return lambda arrays: part.inline(values, arrays)

    def settle(self, param, ctx):
        """Records that a floating parameter moves to `ctx`. Returns False if it moves elsewhere."""
        return self.settled.setdefault(param, ctx) == ctx

    def host(self, name, run, inputs, outputs, bodies=(), stacked=(0, 0)):
        if self._host_steps is not None:
            return self._host_steps.host(name, run, inputs, outputs, stacked=stacked)
        inner = [
            part.host.name for body in bodies for part, _ in body.parts() if part.host is not None
        ]
        self.splits = self.splits or (
            f"{name} around {inner[-1]}" if inner else name,
            _core.current_scope(),
        )
        return [self.trace.new_input(*desc) for desc in outputs]

    def dynamic(self, name, run, inputs):
        if self._host_steps is not None:
            return self._host_steps.dynamic(name, run, inputs)
        self.splits = self.splits or (name, _core.current_scope())
        raise graph_breaks.NeedsValues(name)


class Binding(_Tracing):
    """Returns the traced inputs for the copies that a `Discovery` recorded."""

    @staticmethod
    def settle(param, ctx):
        """Returns False, because all parameters settled after the first trace."""
        return False

    def __init__(self, used, arrays, path, taps=None):
        self._arrays = dict(zip(used, arrays))
        self._path = path
        self._taps = taps

    def _parameter(self, param, ctx):
        array = self._arrays.get((param, ctx))
        if array is None:
            raise MXNetError(
                f"{self._path}: parameter '{param.name}' on {ctx} was used in one trace of the "
                "block but not in another of the same signature; the computation of a "
                "hybridized block may depend only on its inputs' shapes, dtypes and devices, "
                "and on the training mode"
            )
        if has_row_gradient(param):
            if self._taps is not None:
                return self._taps.weight(param, ctx, array)
            refuse_row_gradient(param)
        return array


class LateBinding(_Tracing):
    """Adds parameters as inputs, at their first use, to a program that consists of several
    parts."""

    def __init__(self):
        self._tracer = graph_breaks.current()
        self._arrays = {}

    def _parameter(self, param, ctx):
        if has_row_gradient(param):
            refuse_row_gradient(param)
        if self._tracer is None:  # the trace captures the parameter's array as a constant
            return param.arrays[ctx]
        key = (param, ctx)
        array = self._arrays.get(key)
        if array is None:
            array = self._arrays[key] = self._tracer.parameter(param, ctx)
        return array

    def settle(self, param, ctx):
        """Moves a floating parameter to `ctx`, because no discovery has recorded its device."""
        return self._tracer is not None and self._tracer.settle(param, ctx)


def refuse_row_gradient(param):
    """Raises NotSupportedError for a parameter with a row_sparse gradient, while recording."""
    if _core.is_recording():
        raise NotSupportedError(
            f"Parameter '{param.name}' has a row_sparse gradient, which is supported in eager "
            "blocks, in pipelines and in hybridized blocks that compile to one program, but not "
            "in bodies of loops or with steps that run on the host; create the parameter with "
            "grad_stype='default' (sparse_grad=False)"
        )


class Unknown:
    """Placeholder for a parameter whose shape is not known yet."""

    __slots__ = ("_param", "_resolve", "_path")

    def __init__(self, param, resolve, path):
        object.__setattr__(self, "_param", param)
        object.__setattr__(self, "_resolve", resolve)
        object.__setattr__(self, "_path", path)

    def __getattr__(self, attribute):
        param = self._param
        raise MXNetError(
            f"{self._path()}: the shape {param.shape} of parameter '{param.name}' is not known "
            f"yet, but {attribute!r} needs it; it is inferred when the parameter is first used "
            "as an input of an operator called through F, as in F.FullyConnected(x, weight, "
            "...); otherwise give the full shape when the parameter is created"
        )

    def as_argument_of(self, function, name, *args):
        """Calls a function whose arguments contain this placeholder, as `InferringOps` does.
        Methods of arrays call it."""
        args, _ = _complete(function, name, args, {})
        return function(*args)

    def _operator(self, *_):
        return self.__getattr__("a Python operator")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = (
        _operator
    )
    __pow__ = __rpow__ = __mod__ = __rmod__ = __matmul__ = __rmatmul__ = __neg__ = __getitem__ = (
        __len__
    ) = __iter__ = _operator


def size_of_unknown(unknown):
    """Describes the shape and the name of the parameter of an `Unknown`, as text."""
    return f"shape {unknown._param.shape} of parameter '{unknown._param.name}'"


class InferringOps:
    """``mx.nd`` with operators that complete the shapes of `Unknown` parameters."""

    def __init__(self, module=nd):
        self.__module = module

    def __getattr__(self, name):
        value = getattr(self.__module, name)
        if isinstance(value, types.ModuleType):
            return InferringOps(value)
        if not callable(value) or isinstance(value, type):
            return value

        def call(*args, **kwargs):
            if any(isinstance(arg, Unknown) for arg in args) or any(
                isinstance(arg, Unknown) for arg in kwargs.values()
            ):
                args, kwargs = _complete(value, name, args, kwargs)
            return value(*args, **kwargs)

        call.__name__ = name
        return call


def _complete(op, name, args, kwargs):
    """Returns the arguments of operator `op` with arrays in place of `Unknown`s."""
    unknown = next(arg for arg in (*args, *kwargs.values()) if isinstance(arg, Unknown))
    where = unknown._path()
    if name == "Custom":
        arrays, inferred = _inferred_custom(args, kwargs)
        return _resolved(where, name, args, kwargs, arrays, inferred)
    roles = getattr(op, "arguments", None)  # of a function of mx.np
    if roles is None and not isinstance(op, _core.Op):
        raise MXNetError(
            f"{where}: {name} is not an operator, so it cannot infer the "
            f"{size_of_unknown(unknown)}; give the full shape when the parameter is created"
        )
    info = (op if roles is None else _core.get_op(op.op_name)).describe()
    inputs = [entry["name"] for entry in info["inputs"]]
    params = [entry["name"] for entry in info["params"]]
    if info["inputs"] and info["inputs"][-1]["variadic"]:
        arrays = dict(enumerate(args))
        options = kwargs
    else:
        if roles is None:
            given = {**dict(zip([*inputs, *params], args)), **kwargs}
        else:
            named = {**dict(zip(roles, args)), **kwargs}
            given = {roles[key][1]: value for key, value in named.items() if key in roles}
        arrays = {key: given[key] for key in inputs if given.get(key) is not None}
        options = {key: value for key, value in given.items() if key in params}
    # With mixed precision, the op casts all inputs to one dtype, so infer with that dtype.
    mixed = unknown._param.dtype if _core.precision_is_mixed() else None
    descs = [
        (array._param.shape, array._param.dtype)
        if isinstance(array, Unknown)
        else (array.shape, mixed or array.dtype)
        for array in arrays.values()
    ]
    inferred, _ = _core.infer_shape(info["name"], descs, options)
    return _resolved(where, name, args, kwargs, list(arrays.values()), inferred)


def _inferred_custom(args, kwargs):
    """Returns the inputs of a Custom op in order, and the shapes that its own code infers for
    them."""
    from ...operator import CustomCall

    is_input = {
        key: isinstance(value, (nd.NDArray, Unknown))
        for key, value in kwargs.items()
        if key not in ("op_type", "name")
    }
    params = {key: kwargs[key] for key, given in is_input.items() if not given}
    call = CustomCall(kwargs.get("op_type"), params)
    named = {key: kwargs[key] for key, given in is_input.items() if given}
    names = call.input_names(call.num_inputs(0))
    arrays = [*args, *(named[key] for key in names[len(args) :] if key in named)]
    descs = [
        (array._param.shape, _core.dtype_name(array._param.dtype))
        if isinstance(array, Unknown)
        else (array.shape, _core.dtype_name(array.dtype))
        for array in arrays
    ]
    return arrays, call.infer(descs, [], True)[0]


def _resolved(where, name, args, kwargs, arrays, inferred):
    """Returns the arguments with arrays in place of `Unknown`s; `inferred` has the inputs' (shape,
    dtype)."""
    known = {}
    for array, (shape, _dtype) in zip(arrays, inferred):
        if isinstance(array, Unknown):
            param = array._param
            if not shape_is_known(shape):
                raise MXNetError(
                    f"{where}: {name} does not determine the shape of parameter '{param.name}' "
                    f"(known so far: {shape}); give the full shape when the parameter is created"
                )
            param.shape = tuple(shape)
            known[id(array)] = array._resolve()
    args = [known.get(id(arg), arg) for arg in args]
    return args, {key: known.get(id(arg), arg) for key, arg in kwargs.items()}
