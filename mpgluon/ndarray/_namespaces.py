"""Where each op of the registry is found under ``mx.nd`` (and, with other functions, ``mx.sym``),
by MXNet's prefixes."""

PREFIXES = ("_contrib_", "_linalg_", "_sparse_", "_image_", "_random_")


def place(name):
    """``(sub-namespace, name there)``: ("linalg", "gemm2") for "_linalg_gemm2", ("_internal", ...)
    for other names in "_", ("op", ...) else."""
    for prefix in PREFIXES:
        if name.startswith(prefix):
            return prefix[1:-1], name[len(prefix) :]
    return ("_internal" if name.startswith("_") else "op"), name


def fill(ops, namespaces):
    """Puts each op into its sub-namespace; `namespaces`: sub-namespace -> dict to fill."""
    for name, op in ops.items():
        space, short = place(name)
        if space in namespaces:
            namespaces[space].setdefault(short, op)
