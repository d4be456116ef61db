"""Calls of mx.np on small arrays, with the calls of mx.nd and PyTorch for the same."""

from single_ops.case import Case

# Name -> expressions of mx.np, mx.nd and PyTorch. x and y are arrays of 16x16 numbers, r has 16
# numbers, and i has 16 indices below 10.
CALLS = {
    **{f"x {op} y": (f"x {op} y",) * 3 for op in ("+", "-", "*", "/", ">", "==")},
    **{f"x {op} 2": (f"x {op} 2",) * 3 for op in ("+", "*", "**", ">")},
    "-x": ("-x",) * 3,
    "x + r": ("x + r", "F.broadcast_add(x, r)", "x + r"),
    "x[2]": ("x[2]",) * 3,
    "x[1:5]": ("x[1:5]",) * 3,
    "x[:, 1:9]": ("x[:, 1:9]", "x[:, 1:9]", "x[:, 1:9].contiguous()"),
    "x[i]": ("x[i]",) * 3,
    "x[2] = 1": ("x.__setitem__(2, 1)",) * 3,
    **{
        name: (f"np.{name}(x)", f"F.{name}(x)", f"torch.{name}(x)")
        for name in ("exp", "log1p", "sqrt", "tanh", "sin", "abs", "sign", "square", "floor")
    },
    "maximum": ("np.maximum(x, y)", "F.maximum(x, y)", "torch.maximum(x, y)"),
    "clip": ("np.clip(x, -1, 1)", "F.clip(x, a_min=-1, a_max=1)", "torch.clip(x, -1, 1)"),
    "sum": ("x.sum()", "x.sum()", "x.sum()"),
    "sum axis 1": ("x.sum(axis=1)", "x.sum(axis=1)", "x.sum(dim=1)"),
    "mean axis 0": ("np.mean(x, axis=0)", "F.mean(x, axis=0)", "torch.mean(x, dim=0)"),
    "max axis 1": ("x.max(axis=1)", "x.max(axis=1)", "x.amax(dim=1)"),
    "argmax axis 1": ("x.argmax(axis=1)", "x.argmax(axis=1)", "x.argmax(dim=1)"),
    "reshape": ("x.reshape((4, 64))", "x.reshape((4, 64))", "x.reshape((4, 64))"),
    "transpose": ("x.transpose()", "x.transpose()", "x.t().contiguous()"),
    "expand_dims": ("np.expand_dims(x, 1)", "F.expand_dims(x, axis=1)", "x.unsqueeze(1)"),
    "concatenate": (
        "np.concatenate((x, y), axis=1)",
        "F.concat(x, y, dim=1)",
        "torch.cat((x, y), dim=1)",
    ),
    "stack": ("np.stack((x, y))", "F.stack(x, y)", "torch.stack((x, y))"),
    "dot": ("np.dot(x, y)", "F.dot(x, y)", "torch.mm(x, y)"),
    "where": ("np.where(x > 0, x, y)", "F.where(x > 0, x, y)", "torch.where(x > 0, x, y)"),
    "zeros_like": ("np.zeros_like(x)", "F.zeros_like(x)", "torch.zeros_like(x)"),
    "copy": ("x.copy()", "x.copy()", "x.clone()"),
}


def numpy_calls():
    shapes = {"x": (16, 16), "y": (16, 16), "r": (16,), "i": (16,)}
    for title, (ours, twin, theirs) in CALLS.items():
        inputs = tuple(
            (name, shape, "int64" if name == "i" else "float32") for name, shape in shapes.items()
        )
        yield Case("numpy", title, inputs, ours, theirs, below=10, numpy=True, twin=twin)
