"""Memory that tensors of PyTorch share with parameters, and what keeps it shared."""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref

from .. import _core, ndarray as nd

LEGACY_STREAM = 1  # DLPack's number for the default stream, which is 0 in PyTorch

_guard = threading.Lock()  # of what the modules of this package keep by identity


def import_torch():
    try:
        import torch
    except ImportError as error:
        raise ImportError("mx.interop.torch_function needs PyTorch: install torch") from error
    return torch


def to_torch(array):
    """A tensor over the array's memory, after all queued reads and writes of the array. On a GPU
    its release orders later work after PyTorch's current stream."""
    torch = import_torch()
    if array.context.device_type != "gpu":
        return torch.utils.dlpack.from_dlpack(nd.to_dlpack_for_write(array))
    card = array.__dlpack_device__()[1]
    stream = torch.cuda.current_stream(card).cuda_stream or LEGACY_STREAM
    return torch.utils.dlpack.from_dlpack(_core.to_dlpack_for_write_on(array, stream))


def to_ndarray(tensor, role):
    """An array over the tensor's memory, after its GPU has computed it. role: the tensor's, for
    messages."""
    if tensor.is_cuda:
        import_torch().cuda.current_stream(tensor.device).synchronize()
    try:
        return nd.from_dlpack(tensor.detach())
    except ValueError as error:
        raise type(error)(
            f"torch_function: {role} is {tensor.dtype}, shape {tuple(tensor.shape)}: {error}. "
            "Convert it, as tensor.to(torch.int32) and torch.view_as_real do, or keep it where "
            "only PyTorch sees it"
        ) from None


def listed(result, kind):
    """The outputs as a list, and whether there is but one, by itself."""
    if isinstance(result, kind):
        return [result], True
    if isinstance(result, (tuple, list)) and all(isinstance(item, kind) for item in result):
        return list(result), False
    raise TypeError(
        f"torch_function: the result has to be a {kind.__name__}, or a tuple or list of them, not "
        f"{type(result).__name__}"
    )


@functools.cache
def _pairs_of_tensors():
    return import_torch().utils.weak.WeakTensorKeyDictionary()  # weak references to pairs


_pairs_of_parameters: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def is_trained(tensor):
    return isinstance(tensor, import_torch().nn.Parameter)


def pair_of(tensor=None, parameter=None):
    """The pair of a tensor, or of a parameter; None where it is in none."""
    with _guard:
        if tensor is not None:
            reference = _pairs_of_tensors().get(tensor)
        else:
            reference = _pairs_of_parameters.get(parameter)
    return reference and reference()


@functools.cache
def _locks():
    return import_torch().utils.weak.WeakIdKeyDictionary()


def lock_of(module):
    """The lock of a module's mode: it is one flag, and threads may want either."""
    with _guard:
        lock = _locks().get(module)
        if lock is None:
            lock = _locks()[module] = threading.RLock()
        return lock


class Pair:
    """A parameter, and the tensor that has its memory. Either may be given other memory: `share`
    brings the other one there. Copies and pickles of a pair share again by themselves."""

    def __init__(self, tensor, parameter):
        self.tensor, self.parameter = tensor, parameter
        self.trained = is_trained(tensor)
        self._begin(True)

    def _begin(self, alike):
        # Of the memory that was shared last. None: the tensor has newer values.
        self.address = self.tensor.data_ptr() if alike else None
        self.wanted = self.tensor.requires_grad, self.parameter.grad_req != "null"
        self._register()
        self.parameter.bound_by(self)
        self.unbind()

    def __getstate__(self):
        return {**self.__dict__, "address": self.tensor.data_ptr() == self.address}

    def __setstate__(self, state):
        self.__dict__.update(state)
        self._begin(state["address"])

    def _register(self):
        with _guard:
            _pairs_of_tensors()[self.tensor] = weakref.ref(self)
            _pairs_of_parameters[self.parameter] = weakref.ref(self)

    @property
    def array(self):
        if self.parameter.arrays is None:
            raise self.parameter.missing_error()
        return next(iter(self.parameter.arrays.values()))

    def unbind(self):
        """Follows the parameter to other arrays (`Parameter.bound_by`). What it can't follow to,
        the next call tells of."""
        if self.parameter.arrays is not None:
            with (
                contextlib.suppress(_core.MXNetError, ValueError, TypeError, RuntimeError),
                import_torch().inference_mode(False),
            ):
                self.share()

    def replace(self, tensor):
        """Takes a tensor that the module has by now in place of the former one."""
        self.tensor, self.address = tensor, None
        self._register()

    def share(self):
        """Brings both to one memory: the module's where the tensor was given another one, else the
        parameter's. Work on the array that is queued is done after it."""
        current, address = to_torch(self.array), self.tensor.data_ptr()
        if current.data_ptr() == address == self.address:
            return
        self._check(current)
        if address != self.address:
            current = self._take_over()
        if current.data_ptr() != self.tensor.data_ptr():
            self.tensor.data = current
        self.address = self.tensor.data_ptr()

    def _check(self, current):
        tensor, name = self.tensor, self.parameter.name
        if current.dtype != tensor.dtype or current.device != tensor.device:
            raise _core.MXNetError(
                f"torch_function: parameter {name} is {current.dtype} on {current.device} by now, "
                f"the module's was {tensor.dtype} on {tensor.device}: convert the module first, "
                "then call torch_function again"
            )
        if current.shape != tensor.shape:
            raise _core.MXNetError(
                f"torch_function: parameter {name} has the shape {tuple(current.shape)}, and the "
                f"module's tensor was replaced by one of shape {tuple(tensor.shape)}: call "
                "torch_function again"
            )

    def _take_over(self):
        array = to_ndarray(self.tensor, f"parameter {self.parameter.name}")
        self.address = self.tensor.data_ptr()  # setting `arrays` comes back to `share`
        if self.trained:
            self.parameter.set_data(array)  # the array that was collected, with its gradient
        else:  # earlier calls may keep the memory there was for their backward
            self.parameter.arrays = {
                ctx: array.copyto(ctx) if number else array.as_in_context(ctx)
                for number, ctx in enumerate(self.parameter.arrays)
            }
        return to_torch(self.array)

    def agree(self):
        """Brings both to one opinion on whether the parameter has a gradient: that of who changed
        it."""
        if not self.trained:
            if self.parameter.grad_req != "null":
                raise _core.MXNetError(
                    f"torch_function: parameter {self.parameter.name} has grad_req "
                    f"'{self.parameter.grad_req}' by now, and is a buffer of the module: set "
                    "grad_req first, then call torch_function again"
                )
            return
        wants = self.parameter.grad_req != "null"
        if wants != self.wanted[1]:
            self.tensor.requires_grad_(wants)
        elif self.tensor.requires_grad != self.wanted[0]:
            self.parameter.grad_req = "write" if self.tensor.requires_grad else "null"
        self.wanted = self.tensor.requires_grad, self.parameter.grad_req != "null"


def follow(pairs, module):
    """Brings a module's pairs (by name) to the tensors that it has by now, and to one memory."""
    found = dict(_tensors(module))
    with import_torch().inference_mode(False):
        for name, pair in pairs.items():
            tensor = found.pop(name, None)
            if tensor is None and pair.trained:
                raise _core.MXNetError(
                    f"torch_function: the module has no parameter {name} any more, which it had "
                    "when it was given: call torch_function again"
                )
            if tensor is not pair.tensor and not _replace(pair, tensor, module, name):
                continue
            pair.share()
            pair.agree()
    new = next((name for name, tensor in found.items() if is_trained(tensor)), None)
    if new is not None:
        raise _core.MXNetError(
            f"torch_function: the module has a parameter {new} by now, which nothing would train: "
            "call torch_function again"
        )


def follow_buffers(pairs, module):
    """Brings the pairs of a module's buffers to those that a call of it has replaced."""
    for name, tensor in module.named_buffers():
        pair = pairs.get(name)
        if pair is None or tensor is pair.tensor and tensor.data_ptr() == pair.address:
            continue
        if tensor is pair.tensor or _replace(pair, tensor, module, name):
            pair.share()


def _replace(pair, tensor, module, name):
    """Takes the module's present tensor of that name. False: there is none that can be shared."""
    if tensor is None:
        return False  # the block keeps the last value of a buffer
    if tensor.shape != pair.tensor.shape and name not in module.state_dict():
        return False  # a cache that grows
    pair.replace(tensor)
    return True


def _tensors(module, **options):
    yield from module.named_parameters(**options)
    yield from module.named_buffers(**options)


def tensors_to_share(module):
    """(name, tensor) of a module's parameters, then its buffers; without counters."""
    torch = import_torch()
    for name, tensor in _tensors(module):
        if torch.nn.parameter.is_lazy(tensor):
            raise _core.MXNetError(
                f"torch_function: parameter {name} of the module has no shape yet: call the module "
                "with a tensor first"
            )
        if tensor.is_inference():
            raise _core.MXNetError(
                f"torch_function: {name} of the module was made in torch.inference_mode, so it "
                "can't be trained: make the module outside, or under torch.no_grad"
            )
        counter = tensor.dim() == 0 and not (tensor.is_floating_point() or tensor.is_complex())
        if is_trained(tensor) or not counter:
            yield name, tensor


@functools.cache
def _settled():
    return import_torch().utils.weak.WeakIdKeyDictionary()  # the modules that have the hooks


def settle(module, *args, **kwargs):
    """Brings a module's own tensors to the present values of their parameters: a hook of what reads
    or writes them without a call."""
    for _, tensor in _tensors(module, recurse=False):
        pair = pair_of(tensor)
        if pair is not None:
            pair.unbind()


def settle_around_states(module):
    """Lets `state_dict` and `load_state_dict` wait for work that is queued on the parameters."""
    for part in module.modules():
        if part not in _settled():
            _settled()[part] = True
            part.register_state_dict_pre_hook(settle)
            part.register_load_state_dict_pre_hook(settle)
