"""LSTM layers with a projected output. They are computed step by step, because the op for whole
layers does not support a projection."""


def _steps(F, inputs, r, c, weights, clip, backward):
    """Runs one layer in one direction. Returns the outputs of all steps, and the states after the
    last one."""
    i2h_weight, h2h_weight, i2h_bias, h2h_bias, h2r_weight = weights
    rows, length = i2h_weight.shape[0], inputs.shape[0]
    products = F.FullyConnected(inputs, i2h_weight, i2h_bias, num_hidden=rows, flatten=False)
    outputs = [None] * length
    for t in reversed(range(length)) if backward else range(length):
        gates = products[t] + F.FullyConnected(r, h2h_weight, h2h_bias, num_hidden=rows)
        take, keep, new, show = F.SliceChannel(gates, num_outputs=4, axis=1)
        c = F.sigmoid(keep) * c + F.sigmoid(take) * F.tanh(new)
        if clip is not None:
            c = F.clip(c, *clip)
        r = F.FullyConnected(
            F.sigmoid(show) * F.tanh(c), h2r_weight, no_bias=True, num_hidden=h2r_weight.shape[0]
        )
        outputs[t] = r
    return F.stack(*outputs, axis=0), r, c


def run(F, inputs, states, params, layers, directions, dropout, clip):
    """Runs all layers.

    Parameters
    ----------
    inputs : NDArray
        (time, batch, features)
    states : list of NDArray
        States r and c of all layers and directions.
    params : dict of str to NDArray
        Parameters by their names in the layer.
    clip : tuple of float or None
        Bounds of c.

    Returns
    -------
    list of NDArray
        The output, and the final states.
    """
    after = []
    for layer in range(layers):
        found = []
        for place, direction in enumerate("lr"[:directions]):
            weights = [
                params[f"{direction}{layer}_{name}"]
                for name in ("i2h_weight", "h2h_weight", "i2h_bias", "h2h_bias", "h2r_weight")
            ]
            r, c = [state[layer * directions + place] for state in states]
            outputs, *last = _steps(F, inputs, r, c, weights, clip, direction == "r")
            found.append(outputs)
            after.append(last)
        inputs = F.concat(*found, dim=2) if directions == 2 else found[0]
        if dropout and layer < layers - 1:
            inputs = F.Dropout(inputs, p=dropout)
    return [inputs, *[F.stack(*state, axis=0) for state in zip(*after)]]
