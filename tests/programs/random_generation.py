"""Random decoders and T5 networks, placements and options of `generate`, against the network on
whole sequences.

    python tests/programs/random_generation.py [--count 1000] [--seed 7]

Every way to generate must give the same tokens: alone or in a batch, placed on devices, in groups,
with drafts, with windows that move, as a stream, by a copy, in several threads, and by a network
that changed between calls. Greedy tokens must have the largest scores that the network computes for
the whole sequence without a cache, and sequences of a beam search the scores of the network.
Prompts that share a row must have the scores of each prompt. The network may have packed weights
and adapters, and run under amp. Networks with split heads are checked by scores alone, because
their sums have another order, and so are batches of packed weights, whose bits depend on the number
of rows.
"""

import copy
import os
import pickle
import random
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import mpgluon as mx
from mpgluon import nd
from mpgluon.contrib import amp, lora
from mpgluon.contrib.quantization import quantize_weights
from mpgluon.gluon.model_zoo import text

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # tests

from programs.random_blocks import hunt
from support.devices import on

TOLERANCE = {"float32": 1e-3, "bfloat16": 0.25, "float16": 0.03}


class Case:
    """A decoder, prompts and options."""

    nodes, outputs = (), ()  # a case cannot be made smaller

    def __init__(self, seed):
        self.seed = seed
        r = random.Random(seed)
        self.layers = r.randint(1, 3)
        kv_heads = r.choice([1, 2, 4])
        self.vocab = r.choice([17, 64, 97])
        self.network = {
            "units": r.choice([16, 24]),
            "heads": kv_heads * r.choice([1, 2]),
            "kv_heads": kv_heads,
            "head_dim": r.choice([4, 8]),
            "hidden": r.choice([12, 32]),
            "norm": r.choice(["rms", "layer"]),
            "activation": r.choice(["silu", "gelu", "gelu_tanh", "relu"]),
            "gated": r.random() < 0.7,
            "attention_bias": r.random() < 0.4,
            "mlp_bias": r.random() < 0.4,
            "window": [r.choice([0, 0, 3, 20]) for _ in range(self.layers)],
            "tied": r.random() < 0.3,
            "qk_norm": r.choice([False, False, True, "whole"]),
            "softcap": r.choice([0, 0, 5.0]),
            "head_softcap": r.choice([0, 0, 3.0]),
            **r.choice([{}, {}, {"sandwich": True}, {"sandwich": True, "pre_norm": False}]),
        }
        if r.random() < 0.7:
            self.network["rotary"] = {"style": r.choice(["half", "pairs"])}
        if r.random() < 0.4:
            self.network["positions"] = 1200
        if r.random() < 0.2:
            self.network.update(experts=dict(hidden=24, experts=3, k=r.choice([1, 2])))
        self.dtype = r.choice(["float32", "float32", "bfloat16", "float16"])
        longest = r.choice([5, 40, 40, 1000])
        self.prompts = [
            [r.randrange(self.vocab) for _ in range(r.randint(1, longest))]
            for _ in range(r.choice([1, 2, 2, 3, 5]))
        ]
        self.most = r.choice([1, 5, 12, 30])
        self.options = {"max_new": self.most, "seed": [r.randrange(99) for _ in self.prompts]}
        if r.random() < 0.5:
            self.options.update(
                temperature=r.choice([0.7, 1.5]),
                top_k=r.choice([0, 5]),
                top_p=r.choice([1.0, 0.8]),
                min_p=r.choice([0.0, 0.05]),
            )
        if r.random() < 0.3:
            self.options["repetition_penalty"] = r.choice([0.8, 1.4])
        if r.random() < 0.4:
            self.options["stop"] = [
                r.randrange(self.vocab),
                [r.randrange(self.vocab), r.randrange(self.vocab)],
            ]
        self.devices = sorted(r.randrange(3) for _ in range(self.layers))
        self.groups = r.choice([None, 1, 2, 3])
        self.draft = r.choice(["network", r.randint(1, 7)])
        self.count = r.randint(1, 7)
        self.threads = r.choice([0, 1, 2])
        self.splits = kv_heads > 1 and self.network["qk_norm"] != "whole" and r.random() < 0.5
        self.format = r.choice([None, None, None, "int8", "int4", "nf4"])
        self.adapters = r.choice([(), (), ("one",), ("one", "two")])
        self.rslora, self.dora, self.merged = (r.random() < 0.5 for _ in range(3))
        self.embeds = not self.dora and not self.network["tied"] and r.random() < 0.4
        self.beams = r.choice([2, 3, 5])
        self.beam_options = {
            "length_penalty": r.choice([1.0, 1.0, 0.0, 2.0, -1.0]),
            "early_stopping": r.choice([False, True, "never"]),
        }
        self.amp = r.choice([None, None, None, "bfloat16", "float16"])
        if self.amp:
            self.dtype = "float32"
        self.precision = self.amp or self.dtype
        # Other bits of packed weights may choose other experts.
        self.unstable = self.format and "experts" in self.network

    def __repr__(self):
        return f"{type(self).__name__}({', '.join(f'{k}={v}' for k, v in vars(self).items())})"

    def plain(self, layers=None):
        mx.random.seed(self.seed)
        options = dict(self.network)
        options["window"] = options["window"][: layers or self.layers]
        net = text.Decoder(
            self.vocab, layers=layers or self.layers, deviation=0.5, prefix="net_", **options
        )
        net.initialize(ctx=on(0))
        net.cast(self.dtype)
        return net

    def make(self, layers=None, place=None, use=lambda net: None):
        """Returns a network, placed by `place`, with packed weights and adapters. `use` is called
        with the network between all changes."""
        net = self.plain(layers)
        use(net)
        if place is not None:
            place(net)
            use(net)
        if self.format:
            attention = r"layers\.\d+\.attention\..*"
            dense = self.splits and place is not self.divided
            # Without split attention, routers and a tied head, no dense layer may be left.
            if not (self.splits and "experts" in self.network and self.network["tied"]):
                quantize_weights(net, self.format, skip=attention if dense else ())
            use(net)
        for name in self.adapters:
            self.adapt(net, name)
            use(net)
        if self.adapters:
            lora.enable(net, *self.adapters)
            if self.merged:
                use(net)
                lora.merge(net, keep=False, dequantize=True)
        return net

    def adapt(self, net, name):
        targets = r"layers\.\d+\.attention\.(query|value|proj)|layers\.\d+\.mlp\.down"
        if not (self.merged and self.network["tied"]):
            targets += "|head"
        if self.embeds:
            targets += "|embed"
        dora = self.dora and not self.splits
        lora.apply(net, {targets: 2}, name=name, alpha=1, rslora=self.rslora, dora=dora)
        for param in lora.parameters(net, name).values():
            whole = getattr(param, "global_name", param.name)  # parts of one matrix get one value
            seed = sum(map(ord, whole))
            shape = getattr(param, "global_shape", param.shape)
            value = np.random.RandomState(seed).uniform(-0.3, 0.3, shape)
            param.set_data(nd.array(value, dtype=param.dtype))

    def placed(self):
        places = {rf"layers\.{i}": on(d) for i, d in enumerate(self.devices)}
        first, last = on(self.devices[0]), on(self.devices[-1])
        places.update({"embed": first, "norm": last, "head": last})
        if "positions" in self.network:
            places["positions"] = first
        return self.make(place=lambda net: net.place(places, verbose=False))

    @staticmethod
    def divided(net):
        mx.parallel.shard(net, {r"layers\.\d+\.attention": "heads"}, [on(0), on(1)])

    def check(self):
        mx.context.set_threads(self.threads)
        if self.amp:
            amp.init(self.amp)
        try:
            self._check()
        finally:
            amp.turn_off()
            mx.context.set_threads(0)

    def _check(self):
        net = self.make()
        expected = text.generate(net, self.prompts, **self.options)
        self.check_all(net, expected)
        for name, found in self.ways(net):
            assert found == expected, f"{name}: {found}, not {expected}"
        for name, found in self.other_ways(net):
            if self.format:
                self.check_all(net, found)
            else:
                assert found == expected, f"{name}: {found}, not {expected}"
        found = self.check_beams(net, net)
        placed = self.check_beams(net, self.placed())
        assert found == placed, f"placed beams: {placed}, not {found}"
        self.check_drawn_beams(net)
        self.check_packed(net, self.placed())
        if self.splits:
            split = self.make(place=self.divided, use=self.use)
            self.check_all(net, text.generate(split, self.prompts, **self.options))
            self.check_beams(net, split)
            self.check_packed(net, split)

    def check_all(self, net, found):
        for prompt, new in zip(self.prompts, found):
            self.check_scores(net, prompt, new)

    def ways(self, net):
        """Yields (name, tokens) for each way to generate with the same numbers of rows."""
        streamed = [[] for _ in self.prompts]
        for request, token in text.generate(net, self.prompts, stream=True, **self.options):
            streamed[request].append(token)
        yield "stream", streamed
        copied = copy.deepcopy(net) if self.count % 2 else pickle.loads(pickle.dumps(net))
        yield "copy", text.generate(copied, self.prompts, **self.options)
        with ThreadPoolExecutor(3) as threads:
            calls = [
                threads.submit(text.generate, net, self.prompts, **self.options) for _ in range(2)
            ]
            threads.submit(text.generate, net, self.prompts, 3, num_beams=self.beams).result()
            for call in calls:
                yield "threads", call.result()
        yield "placed", text.generate(self.placed(), self.prompts, groups=1, **self.options)
        yield "changed", text.generate(self.changed(), self.prompts, groups=1, **self.options)

    def use(self, net):
        draft = None if self.draft is None else self.count
        text.generate(net, self.prompts[:1], max_new=2, draft=draft)

    def changed(self):
        """Returns a network that was in use while it changed."""
        net = self.make(use=self.use)
        self.use(net)
        if self.adapters and not (self.merged or self.format or self.network["tied"]):
            lora.merge(net)
            self.use(net)
            lora.unmerge(net)
        if self.dtype == "float32" or not self.adapters:  # adapters of halves are float32
            net.cast("float64")
            self.use(net)
            net.cast(self.dtype)
        net.place([on(0), on(1)], verbose=False)
        return net

    def other_ways(self, net):
        """Yields (name, tokens) for each way with other numbers of rows."""
        seeds = self.options["seed"]
        alone = [
            text.generate(net, [prompt], **{**self.options, "seed": seed})[0]
            for prompt, seed in zip(self.prompts, seeds)
        ]
        yield "alone", alone
        placed, options = self.placed(), self.options
        yield "groups", text.generate(placed, self.prompts, groups=self.groups, **options)
        if self.draft is not None:
            options = {**options, "draft_tokens": self.count}
            draft = self.make(1) if self.draft == "network" else self.draft
            yield "draft", text.generate(placed, self.prompts, draft=draft, **options)

    def check_beams(self, net, used):
        """Compares the scores of a beam search with the scores of whole sequences. Returns them."""
        stop = [token for token in self.options.get("stop", []) if isinstance(token, int)]
        options = {"max_new": self.most, "num_beams": self.beams, "stop": stop}
        found, scores = text.generate(used, self.prompts, return_scores=True, **options)
        for prompt, new, score in zip(self.prompts, found, () if self.unstable else scores):
            if len(new) < self.most:
                new = [*new, *stop]
            rows = self.scores(net, prompt, new)
            rows = rows - rows.max(1, keepdims=True)
            limit = TOLERANCE[self.precision] * max(1, np.abs(rows).max())
            rows -= np.log(np.exp(rows).sum(1, keepdims=True))
            wanted = sum(row[token] for row, token in zip(rows, new)) / len(new)
            assert abs(score - wanted) <= limit, f"beams: score {score}, not {wanted}"
        return found, scores

    def check_packed(self, net, used):
        """Compares the scores of prompts that share a row with the scores of each."""
        if self.precision != "float32" or self.unstable:
            return
        prompts = [prompt[:60] for prompt in self.prompts]
        wanted = [net(nd.array([one], dtype="int32", ctx=on(0)))[0].asnumpy() for one in prompts]
        wanted = np.concatenate(wanted)
        packed = [
            sum(prompts, []),
            [i for i, prompt in enumerate(prompts) for _ in prompt],
            [i for prompt in prompts for i in range(len(prompt))],
        ]
        tokens, *places = (nd.array([one], dtype="int32", ctx=on(0)) for one in packed)
        found = used(tokens, None, None, None, *places)[0].asnumpy()
        error, limit = np.abs(found - wanted).max(), 1e-3 * max(1, np.abs(wanted).max())
        assert error <= limit, f"packed rows: error {error}, limit {limit}"

    def begin(self, prompt):
        """Returns the tokens before the new ones."""
        return prompt

    def scores(self, net, prompt, new):
        """Returns the scores of each new token, computed for the whole sequence."""
        tokens = nd.array([[*prompt, *new[:-1]]], dtype="int32", ctx=on(0))
        return net(tokens)[0].astype("float32").asnumpy()[len(prompt) - 1 :]

    def check_drawn_beams(self, net):
        """Compares a beam search, which may draw, on one device and on several."""
        options = {**self.options, **self.beam_options, "num_beams": self.beams}
        options["return_scores"] = True
        options["stop"] = options.get("stop", [])[:1]  # single tokens
        expected = text.generate(net, self.prompts, **options)
        found = text.generate(self.placed(), self.prompts, **options)
        assert found == expected, f"beams: {found}, not {expected}"

    def check_scores(self, net, prompt, new):
        """Compares greedy tokens with the scores of the whole sequence."""
        assert len(new) <= self.most and all(0 <= token < self.vocab for token in new)
        if self.options.get("temperature") or not new or self.unstable:
            return
        penalty = self.options.get("repetition_penalty", 1)
        rows, errors = self.scores(net, prompt, new), [0] * len(new)
        if self.format and self.precision != "float32":  # other rounding errors, perhaps amplified
            amp.turn_off()
            exact = copy.deepcopy(net)
            exact.cast("float32")
            errors = np.abs(rows - self.scores(exact, prompt, new)).max(1)
            if self.amp:
                amp.init(self.amp)
        for i, (row, error, token) in enumerate(zip(rows, errors, new)):
            there = list({*self.begin(prompt), *new[:i]})
            row[there] = np.where(row[there] > 0, row[there] / penalty, row[there] * penalty)
            limit = TOLERANCE[self.precision] * max(1, np.abs(row).max()) + 2 * error
            assert row[token] >= row.max() - limit, (i, token, row[token], row.max())


class T5Case(Case):
    """A T5, whose prompts are the tokens of the encoder."""

    def __init__(self, seed):
        super().__init__(seed)
        r = random.Random(seed)
        self.network = {
            "units": r.choice([16, 24]),
            "heads": r.choice([1, 2, 4]),
            "head_dim": r.choice([4, 8]),
            "hidden": r.choice([12, 32]),
            "decoder_layers": r.randint(1, 3),
            "activation": r.choice(["relu", "silu", "gelu_tanh"]),
            "gated": r.random() < 0.5,
            "buckets": r.choice([8, 32]),
            "most": r.choice([20, 128]),
            "tied": r.random() < 0.5,
            "head_scale": r.choice([1.0, 0.25]),
            "start_token": r.randrange(self.vocab),
        }
        self.prompts = [prompt[:300] for prompt in self.prompts]
        self.decoder_devices = sorted(r.randrange(3) for _ in range(self.network["decoder_layers"]))
        self.splits, self.draft, self.adapters, self.unstable = False, None, (), False

    def plain(self, layers=None):
        mx.random.seed(self.seed)
        net = text.T5(self.vocab, layers=self.layers, deviation=0.3, prefix="net_", **self.network)
        net.initialize(ctx=on(0))
        net.cast(self.dtype)
        return net

    def placed(self):
        places = {}
        for name, devices in (("encoder", self.devices), ("decoder", self.decoder_devices)):
            places[rf"{name}|{name}\.bias"] = on(devices[0])
            places[rf"{name}\.norm"] = on(devices[-1])
            places.update({rf"{name}\.layers\.{i}": on(d) for i, d in enumerate(devices)})
        places.update({"embed": on(self.devices[0]), "head": on(self.decoder_devices[-1])})
        return self.make(place=lambda net: net.place(places, verbose=False))

    def check_packed(self, net, used):
        """T5 takes no segments."""

    def begin(self, prompt):
        return [self.network["start_token"]]

    def scores(self, net, prompt, new):
        given = [prompt, [*self.begin(prompt), *new[:-1]]]
        arrays = [nd.array([tokens], dtype="int32", ctx=on(0)) for tokens in given]
        return net(*arrays)[0].astype("float32").asnumpy()


def case(seed):
    return T5Case(seed) if seed % 4 == 0 else Case(seed)


if __name__ == "__main__":
    sys.exit(hunt(lambda seed, options: case(seed)))
