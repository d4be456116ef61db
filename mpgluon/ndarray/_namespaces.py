"""The sub-namespace of each op under ``mx.nd`` and ``mx.sym``, derived from MXNet's prefixes."""

PREFIXES = ("_contrib_", "_linalg_", "_sparse_", "_image_", "_random_")


def place(name):
    """Returns ``(sub-namespace, name there)``.

    Examples are ("linalg", "gemm2") for "_linalg_gemm2", ("_internal", ...) for any other name in
    "_", and ("op", ...) for the rest.
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
