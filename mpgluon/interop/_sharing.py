"""Memory sharing between PyTorch tensors and parameters."""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref

from .. import _core, ndarray as nd

LEGACY_STREAM = 1  # DLPack's id of the default stream, which is 0 in PyTorch

_guard = threading.Lock()  # protects this package's tables keyed by identity


def import_torch():
    try:
        import torch
    except ImportError as error:
        raise ImportError("mx.interop.torch_function needs PyTorch: install torch") from error
    return torch


def to_torch(array):
    """Returns a tensor that shares the array's memory, after all queued reads and writes.

    On a GPU its release orders later work after PyTorch's current stream.
    """
    torch = import_torch()
    if array.context.device_type != "gpu":
        return torch.utils.dlpack.from_dlpack(nd.to_dlpack_for_write(array))
    card = array.__dlpack_device__()[1]
    stream = torch.cuda.current_stream(card).cuda_stream or LEGACY_STREAM
    return torch.utils.dlpack.from_dlpack(_core.to_dlpack_for_write_on(array, stream))


def to_ndarray(tensor, role):
    """Returns an array that shares the tensor's memory, after its GPU has computed it.

    `role` describes the tensor in errors.
    """
    if tensor.is_cuda:
        import_torch().cuda.current_stream(tensor.device).synchronize()
    try:
        return nd.from_dlpack(tensor.detach())
    except ValueError as error:
        raise type(error)(
            f"torch_function: {role} is {tensor.dtype}, shape {tuple(tensor.shape)}: {error}. "
            "Convert it, for example with tensor.to(torch.int32) or torch.view_as_real, or use "
            "it only inside PyTorch"
        ) from None


def listed(result, kind):
    """Returns the outputs as a list, and True if the result is a single, unlisted output."""
    if isinstance(result, kind):
        return [result], True
    if isinstance(result, (tuple, list)) and all(isinstance(item, kind) for item in result):
        return list(result), False
    raise TypeError(
        f"torch_function: the result must be a {kind.__name__}, or a tuple or list of them, not "
        f"{type(result).__name__}"
    )


@functools.cache
def _pairs_of_tensors():
    return import_torch().utils.weak.WeakTensorKeyDictionary()  # values: weak references to pairs


_pairs_of_parameters: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def is_trained(tensor):
    return isinstance(tensor, import_torch().nn.Parameter)


def pair_of(tensor=None, parameter=None):
    """Returns the pair of a tensor, or of a parameter, or None."""
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
    """Returns the lock of a module's mode, a single flag that threads may set differently."""
    with _guard:
        lock = _locks().get(module)
        if lock is None:
            lock = _locks()[module] = threading.RLock()
        return lock


class Pair:
    """A parameter and the tensor that shares its memory.

    If one of them gets other memory, `share` moves the other one there. Copies and pickles of a
    pair share their memory automatically.
    """

    def __init__(self, tensor, parameter):
        self.tensor, self.parameter = tensor, parameter
        self.trained = is_trained(tensor)
        self._begin(True)

    def _begin(self, alike):
        # Address of the memory that the tensor and the parameter last shared. None means that they
        # do not share memory and that the tensor's values are newer.
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
        """Makes the tensor share the parameter's new arrays (see `Parameter.bound_by`).

        If that fails, the next call raises the error.
        """
        if self.parameter.arrays is not None:
            with (
                contextlib.suppress(_core.MXNetError, ValueError, TypeError, RuntimeError),
                import_torch().inference_mode(False),
            ):
                self.share()

    def replace(self, tensor):
        """Replaces the pair's tensor by the module's present one."""
        self.tensor, self.address = tensor, None
        self._register()

    def share(self):
        """Makes both use the same memory, after queued work on the array.

        If the tensor got other memory, the parameter moves there. Otherwise, the tensor moves to
        the parameter's memory.
        """
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
                f"torch_function: parameter {name} is now {current.dtype} on {current.device}, "
                f"but the module's was {tensor.dtype} on {tensor.device}; convert the module "
                "first, then call torch_function again"
            )
        if current.shape != tensor.shape:
            raise _core.MXNetError(
                f"torch_function: parameter {name} has shape {tuple(current.shape)}, but the "
                f"module's tensor was replaced by one of shape {tuple(tensor.shape)}; call "
                "torch_function again"
            )

    def _take_over(self):
        array = to_ndarray(self.tensor, f"parameter {self.parameter.name}")
        self.address = self.tensor.data_ptr()  # setting `arrays` calls `share` recursively
        if self.trained:
            self.parameter.set_data(array)  # keeps the array object, and its gradient
        else:  # use new memory, because earlier calls may need the old memory for backward
            self.parameter.arrays = {
                ctx: array.copyto(ctx) if number else array.as_in_context(ctx)
                for number, ctx in enumerate(self.parameter.arrays)
            }
        return to_torch(self.array)

    def agree(self):
        """Synchronizes the gradient request of both; the side that changed it wins."""
        if not self.trained:
            if self.parameter.grad_req != "null":
                raise _core.MXNetError(
                    f"torch_function: parameter {self.parameter.name} now has grad_req "
                    f"'{self.parameter.grad_req}', but it is a buffer of the module; set "
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
    """Updates a module's pairs (by name) to its present tensors, and makes them share memory."""
    found = dict(_tensors(module))
    with import_torch().inference_mode(False):
        for name, pair in pairs.items():
            tensor = found.pop(name, None)
            if tensor is None and pair.trained:
                raise _core.MXNetError(
                    f"torch_function: the parameter {name} was removed from the module; call "
                    "torch_function again"
                )
            if tensor is not pair.tensor and not _replace(pair, tensor, module, name):
                continue
            pair.share()
            pair.agree()
    new = next((name for name, tensor in found.items() if is_trained(tensor)), None)
    if new is not None:
        raise _core.MXNetError(
            f"torch_function: the parameter {new} was added to the module and would not be "
            "trained; call torch_function again"
        )


def follow_buffers(pairs, module):
    """Updates the pairs of a module's buffers to those that a call has replaced."""
    for name, tensor in module.named_buffers():
        pair = pairs.get(name)
        if pair is None or tensor is pair.tensor and tensor.data_ptr() == pair.address:
            continue
        if tensor is pair.tensor or _replace(pair, tensor, module, name):
            pair.share()


def _replace(pair, tensor, module, name):
    """Replaces the pair's tensor by the module's; returns False if it cannot be shared."""
    if tensor is None:
        return False  # not a tensor anymore: the block keeps the last value of the buffer
    if tensor.shape != pair.tensor.shape and name not in module.state_dict():
        return False  # the shape has changed, as for a growing cache
    pair.replace(tensor)
    return True


def _tensors(module, **options):
    yield from module.named_parameters(**options)
    yield from module.named_buffers(**options)


def tensors_to_share(module):
    """Yields (name, tensor) of a module's parameters, then its buffers other than counters."""
    torch = import_torch()
    for name, tensor in _tensors(module):
        if torch.nn.parameter.is_lazy(tensor):
            raise _core.MXNetError(
                f"torch_function: parameter {name} of the module has no shape yet; call the "
                "module with a tensor first"
            )
        if tensor.is_inference():
            raise _core.MXNetError(
                f"torch_function: {name} of the module was created in torch.inference_mode, so "
                "it cannot be trained; create the module outside of it, or under torch.no_grad"
            )
        counter = tensor.dim() == 0 and not (tensor.is_floating_point() or tensor.is_complex())
        if is_trained(tensor) or not counter:
            yield name, tensor


@functools.cache
def _settled():
    return import_torch().utils.weak.WeakIdKeyDictionary()  # the modules with hooks installed


def settle(module, *args, **kwargs):
    """Updates a module's own tensors to the present values of their parameters.

    It is a hook of methods that read or write the tensors outside a call.
    """
    for _, tensor in _tensors(module, recurse=False):
        pair = pair_of(tensor)
        if pair is not None:
            pair.unbind()


def settle_around_states(module):
    """Makes `state_dict` and `load_state_dict` wait for queued work on the parameters."""
    for part in module.modules():
        if part not in _settled():
            _settled()[part] = True
            part.register_state_dict_pre_hook(settle)
            part.register_load_state_dict_pre_hook(settle)
