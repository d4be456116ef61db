"""Products with labeled axes: mx.np.einsum and torch.einsum."""

from single_ops.case import Case, size

PRODUCTS = (
    ("ij,jk->ik", (512, 512), (512, 512)),
    ("ij,jk->ik", (8, 8), (8, 8)),
    ("bij,bjk->bik", (16, 128, 128), (16, 128, 128)),
    ("bhqd,bhkd->bhqk", (4, 8, 128, 64), (4, 8, 128, 64)),
    ("bqhd,bkhd->bhqk", (4, 128, 8, 64), (4, 128, 8, 64)),
    ("ijk,kl->ijl", (16, 64, 256), (256, 256)),
    ("ii->i", (512, 512)),
    ("ij->ji", (512, 512)),
    ("ij->i", (512, 512)),
    ("i,i->", (10000,), (10000,)),
    ("bi,bj->bij", (64, 128), (64, 128)),
    ("bi,bi->b", (256, 256), (256, 256)),
    ("ij,jk,kl->il", (256, 16), (16, 256), (256, 16)),
)


def einsum():
    for subscripts, *shapes in PRODUCTS:
        names = "xyz"[: len(shapes)]
        arrays = ", ".join(names)
        yield Case(
            "einsum",
            f"{subscripts}, {' and '.join(map(size, shapes))}",
            tuple((name, shape, "float32") for name, shape in zip(names, shapes)),
            f"np.einsum('{subscripts}', {arrays})",
            f"torch.einsum('{subscripts}', {arrays}).contiguous()",
            numpy=True,
        )
