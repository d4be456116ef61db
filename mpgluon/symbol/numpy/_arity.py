"""Facts about the functions of ``mx.np`` that a symbol needs before it knows shapes: the numbers of
results, and the names in MXNet's files."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any


# Functions whose results' shapes depend on values, and functions that read values: a compiled
# program is cut at them.
DYNAMIC = {
    "npx.constraint_check",
    "np.nonzero",
    "npx.nonzero",
    "np.unique",
    "np.bincount",
    "np.delete",
    "np.argwhere",
    "np.flatnonzero",
    "np.extract",
    "np.compress",
    "np.trim_zeros",
    "np.setdiff1d",
    "np.intersect1d",
    "np.union1d",
}
# Functions that run the op of their name for some numbers of dimensions only. A symbol's node holds
# the function.
BY_DIMENSIONS = {"np.dot"}
# Parameters that take a list of arrays.
SEQUENCES = {"arrays", "seq", "tup", "arys", "operands", "xi", "args"}
FIXED = {
    "np.histogram": 2,
    "np.tril_indices_from": 2,
    "np.triu_indices_from": 2,
    "np.linalg.svd": 3,
    "np.linalg.slogdet": 2,
    "np.linalg.eig": 2,
    "np.linalg.eigh": 2,
    "np.linalg.qr": 2,
    "np.linalg.lstsq": 4,
    "np.modf": 2,
    "np.frexp": 2,
    "np.divmod": 2,
}
# One result for each input.
_MAPS = {
    "np.meshgrid",
    "np.broadcast_arrays",
    "np.atleast_1d",
    "np.atleast_2d",
    "np.atleast_3d",
}
_SPLITS = {"np.split", "np.array_split", "np.hsplit", "np.vsplit", "np.dsplit"}

# The ops of MXNet's files with other names than their functions.
FUNCTIONS = {
    "_np_amax": "np.max",
    "_np_amin": "np.min",
    "_np_product": "np.prod",
    "_np_sometrue": "np.any",
    "_npi_tensordot_int_axes": "np.tensordot",
    "_npi_insert_scalar": "np.insert",
    "_npi_insert_slice": "np.insert",
    "_npi_insert_tensor": "np.insert",
    "_npi_cholesky": "np.linalg.cholesky",
    "_npi_det": "np.linalg.det",
    "_npi_eig": "np.linalg.eig",
    "_npi_eigh": "np.linalg.eigh",
    "_npi_eigvals": "np.linalg.eigvals",
    "_npi_eigvalsh": "np.linalg.eigvalsh",
    "_npi_inv": "np.linalg.inv",
    "_npi_norm": "np.linalg.norm",
    "_npi_pinv": "np.linalg.pinv",
    "_npi_pinv_scalar_rcond": "np.linalg.pinv",
    "_npi_slogdet": "np.linalg.slogdet",
    "_npi_solve": "np.linalg.solve",
    "_npi_svd": "np.linalg.svd",
    "_npi_tensorinv": "np.linalg.tensorinv",
    "_npi_tensorsolve": "np.linalg.tensorsolve",
    "_npi_bernoulli": "npx.random.bernoulli",
    "_npi_normal_n": "npx.random.normal_n",
    "_npi_uniform_n": "npx.random.uniform_n",
    "_npi_choice": "np.random.choice",
    "_npi_exponential": "np.random.exponential",
    "_npi_gamma": "np.random.gamma",
    "_npi_gumbel": "np.random.gumbel",
    "_npi_logistic": "np.random.logistic",
    "_npi_multinomial": "np.random.multinomial",
    "_npi_normal": "np.random.normal",
    "_npi_pareto": "np.random.pareto",
    "_npi_powerd": "np.random.power",
    "_npi_rayleigh": "np.random.rayleigh",
    "_npi_uniform": "np.random.uniform",
    "_npi_weibull": "np.random.weibull",
}
_PLAIN = """
all any atleast_1d atleast_2d atleast_3d diagflat diagonal dot max min moveaxis prod roll sum trace
"""
# The names of the functions' ops in MXNet's files, if they differ from `_npi_` and their name.
BACKEND = {path: op for op, path in reversed(FUNCTIONS.items())}
BACKEND.update({f"np.{name}": f"_np_{name}" for name in _PLAIN.split()})


def num_outputs(path: str, arguments: dict[str, Any], count: int) -> int:
    """Returns the number of results of a function for its arguments and number of inputs."""
    if path in _MAPS:
        return count
    if path in _SPLITS:
        sections = arguments["indices_or_sections"]
        return sections if isinstance(sections, int) else len(sections) + 1
    if path == "np.unique":
        flags = ("return_index", "return_inverse", "return_counts")
        return 1 + sum(bool(arguments.get(flag)) for flag in flags)
    if path == "np.average":
        return 2 if arguments.get("returned") else 1
    if path == "np.linalg.qr" and arguments.get("mode") == "r":
        return 1
    return FIXED.get(path, 1)
