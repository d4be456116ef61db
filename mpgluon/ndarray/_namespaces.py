"""The sub-namespace of each op under ``mx.nd`` and ``mx.sym``, derived from MXNet's prefixes."""

PREFIXES = ("_contrib_", "_linalg_", "_sparse_", "_image_", "_random_")


def place(name):
    """Returns ``(sub-namespace, name there)``.

    For example, "_linalg_gemm2" is ("linalg", "gemm2"). All other names that begin with "_" are in
    "_internal", and the rest in "op".
    """
    for prefix in PREFIXES:
        if name.startswith(prefix):
            return prefix[1:-1], name[len(prefix) :]
    return ("_internal" if name.startswith("_") else "op"), name


def fill(ops, namespaces):
    """Adds each op to its sub-namespace; `namespaces` maps a sub-namespace to the dict to fill."""
    for name, op in ops.items():
        space, short = place(name)
        if space in namespaces:
            namespaces[space].setdefault(short, op)
