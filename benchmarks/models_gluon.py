"""The benchmarks' models in Gluon: the same code for mpgluon and MXNet, passed as `mx`. Sizes are
in sizes.py."""

import sizes


def make_models(mx):
    """Returns a dict of model classes and functions that create a block."""
    gluon = mx.gluon
    nn, rnn = gluon.nn, gluon.rnn

    def mlp():
        net = nn.HybridSequential()
        inputs = sizes.MLP_LAYERS[0]
        for units in sizes.MLP_LAYERS[1:-1]:
            net.add(nn.Dense(units, in_units=inputs, activation="relu"))
            inputs = units
        net.add(nn.Dense(sizes.MLP_LAYERS[-1], in_units=inputs))
        return net

    class LanguageModel(gluon.HybridBlock):
        """Embedding, `layers` LSTM layers and decoder. Maps (time, batch) words to (time, batch,
        vocabulary) scores."""

        def __init__(self, vocabulary, units, layers, **kwargs):
            super().__init__(**kwargs)
            with self.name_scope():
                self.embed = nn.Embedding(vocabulary, units)
                self.rnn = rnn.LSTM(units, layers, input_size=units)
                self.decoder = nn.Dense(vocabulary, in_units=units, flatten=False)

        def hybrid_forward(self, F, x, h, c):
            out, _ = self.rnn(self.embed(x), [h, c])
            return self.decoder(out)

    class SplitLanguageModel(gluon.HybridBlock):
        """The language model of two layers with the first half on cpu(0), the second on cpu(1)."""

        def __init__(self, vocabulary, units, **kwargs):
            super().__init__(**kwargs)
            with self.name_scope():
                self.embed = nn.Embedding(vocabulary, units)
                self.lstm1 = rnn.LSTM(units, input_size=units)
                self.lstm2 = rnn.LSTM(units, input_size=units)
                self.decoder = nn.Dense(vocabulary, in_units=units, flatten=False)

        def initialize_split(self):
            for child, ctx in (
                (self.embed, mx.cpu(0)),
                (self.lstm1, mx.cpu(0)),
                (self.lstm2, mx.cpu(1)),
                (self.decoder, mx.cpu(1)),
            ):
                child.initialize(ctx=ctx)

        def hybrid_forward(self, F, x, h1, c1, h2, c2):
            out, _ = self.lstm1(self.embed(x), [h1, c1])
            out, _ = self.lstm2(out.as_in_context(mx.cpu(1)), [h2, c2])
            return self.decoder(out)

    class Residual(gluon.HybridBlock):
        """Two 3x3 convolutions and the shortcut, as in the first version of ResNet."""

        def __init__(self, inputs, channels, stride, **kwargs):
            super().__init__(**kwargs)
            with self.name_scope():
                self.body = nn.HybridSequential()
                self.body.add(
                    nn.Conv2D(channels, 3, stride, 1, use_bias=False, in_channels=inputs),
                    nn.BatchNorm(in_channels=channels),
                    nn.Activation("relu"),
                    nn.Conv2D(channels, 3, 1, 1, use_bias=False, in_channels=channels),
                    nn.BatchNorm(in_channels=channels),
                )
                self.around = None
                if stride != 1 or inputs != channels:
                    self.around = nn.HybridSequential()
                    self.around.add(
                        nn.Conv2D(channels, 1, stride, use_bias=False, in_channels=inputs),
                        nn.BatchNorm(in_channels=channels),
                    )

        def hybrid_forward(self, F, x):
            return F.Activation(
                self.body(x) + (self.around(x) if self.around else x), act_type="relu"
            )

    def resnet(blocks, channels, classes):
        """Returns a ResNet with residual blocks of two convolutions, `blocks` of them in each stage
        of `channels`."""
        net = nn.HybridSequential()
        net.add(
            nn.Conv2D(channels[0], 7, 2, 3, use_bias=False, in_channels=3),
            nn.BatchNorm(in_channels=channels[0]),
            nn.Activation("relu"),
            nn.MaxPool2D(3, 2, 1),
        )
        inputs = channels[0]
        for stage, (count, outputs) in enumerate(zip(blocks, channels)):
            for i in range(count):
                net.add(Residual(inputs, outputs, 2 if i == 0 and stage > 0 else 1))
                inputs = outputs
        net.add(nn.GlobalAvgPool2D(), nn.Flatten(), nn.Dense(classes, in_units=inputs))
        return net

    def resnet18():
        return resnet((2, 2, 2, 2), sizes.RESNET_CHANNELS, sizes.RESNET_CLASSES)

    class Attention(gluon.HybridBlock):
        """Causal self-attention of `heads` heads in elementary ops."""

        def __init__(self, units, heads, length, **kwargs):
            super().__init__(**kwargs)
            self.heads, self.size, self.length, self.dtype = (
                heads,
                units // heads,
                length,
                "float32",
            )
            with self.name_scope():
                self.qkv = nn.Dense(3 * units, flatten=False, in_units=units)
                self.out = nn.Dense(units, flatten=False, in_units=units)

        def cast(self, dtype):
            super().cast(dtype)
            self.dtype = dtype

        def hybrid_forward(self, F, x):
            # (batch, time, 3 * units) -> three of (batch * heads, time, size)
            parts = F.transpose(
                F.reshape(self.qkv(x), (0, 0, 3, self.heads, self.size)), (2, 0, 3, 1, 4)
            )
            parts = F.reshape(parts, (3, -3, 0, 0))
            q, k, v = (
                F.reshape(F.slice_axis(parts, axis=0, begin=i, end=i + 1), (-3, -2))
                for i in range(3)
            )
            scores = F.batch_dot(q, k, transpose_b=True) * self.size**-0.5
            place = F.arange(self.length)
            later = F.broadcast_lesser(F.reshape(place, (-1, 1)), F.reshape(place, (1, -1)))
            hidden = (
                later * -1e9 if self.dtype == "float32" else F.Cast(later * -1e9, dtype=self.dtype)
            )
            weights = F.softmax(F.broadcast_add(scores, F.expand_dims(hidden, axis=0)), axis=-1)
            joined = F.transpose(
                F.reshape(F.batch_dot(weights, v), (-4, -1, self.heads, 0, 0)), (0, 2, 1, 3)
            )
            return self.out(F.reshape(joined, (0, 0, -3)))

    class TransformerLayer(gluon.HybridBlock):
        """Pre-norm attention and a pre-norm network of two layers, each added to its input."""

        def __init__(self, units, heads, length, **kwargs):
            super().__init__(**kwargs)
            with self.name_scope():
                self.norm1 = nn.LayerNorm(in_channels=units)
                self.attention = Attention(units, heads, length)
                self.norm2 = nn.LayerNorm(in_channels=units)
                self.widen = nn.Dense(4 * units, flatten=False, in_units=units)
                self.narrow = nn.Dense(units, flatten=False, in_units=4 * units)

        def hybrid_forward(self, F, x):
            x = x + self.attention(self.norm1(x))
            return x + self.narrow(F.LeakyReLU(self.widen(self.norm2(x)), act_type="gelu"))

    class GPT(gluon.HybridBlock):
        """A causal transformer. Maps (batch, length) words to (batch, length, vocabulary)
        scores."""

        def __init__(self, vocabulary, units, heads, layers, length, **kwargs):
            super().__init__(**kwargs)
            self.length = length
            with self.name_scope():
                self.embed = nn.Embedding(vocabulary, units)
                self.place = nn.Embedding(length, units)
                self.layers = nn.HybridSequential()
                for _ in range(layers):
                    self.layers.add(TransformerLayer(units, heads, length))
                self.norm = nn.LayerNorm(in_channels=units)
                self.decoder = nn.Dense(vocabulary, flatten=False, in_units=units)

        def hybrid_forward(self, F, x):
            x = F.broadcast_add(
                self.embed(x), F.expand_dims(self.place(F.arange(self.length)), axis=0)
            )
            return self.decoder(self.norm(self.layers(x)))

    return {
        "mlp": mlp,
        "LanguageModel": LanguageModel,
        "SplitLanguageModel": SplitLanguageModel,
        "resnet": resnet,
        "resnet18": resnet18,
        "GPT": GPT,
    }
