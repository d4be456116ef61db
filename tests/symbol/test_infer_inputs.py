"""Input shapes that follow from output shapes: the column `infer_inputs` of csrc/op/ops.def."""

import pytest

import mpgluon as mx


@pytest.mark.parametrize(
    "call, given, result, found",
    [
        (lambda x: mx.sym.transpose(x, axes=(1, 2, 0)), (0, 0, 0), (4, 5, 3), (3, 4, 5)),
        (lambda x: mx.sym.transpose(x), (0, 0), (4, 5), (5, 4)),
        (lambda x: x.reshape((-1, 6)), (0, 2, 3), (4, 6), (4, 2, 3)),
        (lambda x: mx.sym.Flatten(x), (0, 2, 3), (4, 6), (4, 2, 3)),
        (lambda x: mx.sym.expand_dims(x, axis=1), (0, 3), (4, 1, 3), (4, 3)),
        (
            lambda x: mx.sym.FullyConnected(x, num_hidden=7, flatten=False),
            (0, 0, 3),
            (4, 5, 7),
            (4, 5, 3),
        ),
        (
            lambda x: mx.sym.Convolution(x, kernel=(3, 5), num_filter=4, pad=(1, 0)),
            (0, 2, 0, 0),
            (6, 4, 8, 9),
            (6, 2, 8, 13),
        ),
        (
            lambda x: mx.sym.Convolution(x, kernel=(3, 5), num_filter=4, layout="NHWC"),
            (0, 0, 0, 2),
            (6, 8, 9, 4),
            (6, 10, 13, 2),
        ),
        (
            lambda x: mx.sym.split(x, num_outputs=3, axis=1, squeeze_axis=True)[1],
            (0, 0, 0),
            (4, 5),
            (4, 3, 5),
        ),
        (lambda x: mx.sym.amp_multicast(x, x, num_outputs=2)[1], (0, 3), (4, 3), (4, 3)),
        (lambda x: mx.sym.Cast(x, dtype="float64"), (0, 3), (4, 3), (4, 3)),
        (lambda x: mx.sym.LayerNorm(x), (0, 3), (4, 3), (4, 3)),
        (lambda x: mx.sym.LeakyReLU(x, act_type="prelu"), (0, 3), (4, 3), (4, 3)),
        (lambda x: mx.sym.zeros_like(x), (0, 3), (4, 3), (4, 3)),
    ],
)
def test_input_shapes_follow_from_output_shapes(call, given, result, found):
    net = mx.sym.elemwise_add(call(mx.sym.var("x", shape=given)), mx.sym.var("y", shape=result))
    assert net.infer_shape_partial()[0][0] == found


def test_conflicting_uses_name_the_input_and_the_required_shape():
    part = mx.sym.split(mx.sym.var("x", shape=(0, 5)), num_outputs=2, axis=1)[0]
    with pytest.raises(
        mx.MXNetError,
        match="SliceChannel: data must have the shape .4, 6., as the following ops require",
    ):
        (part + mx.sym.var("y", shape=(4, 3))).infer_shape()
