"""BERT, RoBERTa, ViT, CLIP and T5, compared with transformers, which creates and saves random
networks."""

import numpy as np
import pytest

import mpgluon as mx
from mpgluon import autograd, gluon, nd
from mpgluon.base import MXNetError
from mpgluon.gluon.model_zoo import text

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

RNG = np.random.RandomState(0)
TOKENS = RNG.randint(2, 63, (4, 20)).astype("int32")
TOKENS[:, 15] = 63  # the end of texts for CLIP
TOKENS[1, 12:] = 1  # padding of RoBERTa
MASK = np.ones((4, 20), "float32")
MASK[1, 12:] = 0
TYPES = np.repeat((np.arange(20) > 8).astype("int32")[None], 4, 0)
IMAGES = RNG.randn(4, 3, 16, 16).astype("float32")
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
}
TEXT = {
    **SIZES,
    "vocab_size": 64,
    "max_position_embeddings": 40,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
VISION = {**SIZES, "image_size": 16, "patch_size": 4}
LABELS = {str(i): i for i in range(7)}
T5_SIZES = {
    "vocab_size": 64,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
    "dropout_rate": 0.0,
    "decoder_start_token_id": 0,
}


def clip(end):
    return {
        "text_config": {
            **SIZES,
            "vocab_size": 64,
            "max_position_embeddings": 40,
            "bos_token_id": 0,
            "eos_token_id": end,
        },
        "vision_config": VISION,
        "projection_dim": 8,
    }


# name -> (class of the config, class of the model, options)
MODELS = {
    **{
        f"{kind} {head}": (f"{kind}Config", f"{kind}{head}", {**TEXT, "label2id": LABELS})
        for kind in ("Bert", "Roberta")
        for head in ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification")
    },
    "ViT": ("ViTConfig", "ViTForImageClassification", {**VISION, "label2id": LABELS}),
    "ViT without head": ("ViTConfig", "ViTModel", VISION),
    "CLIP": ("CLIPConfig", "CLIPModel", clip(63)),
    "CLIP with old config": ("CLIPConfig", "CLIPModel", clip(2)),
    "T5": ("T5Config", "T5ForConditionalGeneration", T5_SIZES),
    "T5 1.1": (
        "T5Config",
        "T5ForConditionalGeneration",
        {
            **T5_SIZES,
            "num_decoder_layers": 3,
            "feed_forward_proj": "gated-gelu",
            "tie_word_embeddings": False,
        },
    ),
}


def saved(name, folder):
    config, model, options = MODELS[name]
    options = dict(options)
    if "label2id" in options:
        options["id2label"] = {i: label for label, i in options.pop("label2id").items()}
    torch.manual_seed(0)
    model = getattr(transformers, model)(getattr(transformers, config)(**options))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for param in model.parameters():
            deviation = 0.1 if param.dim() < 2 else 0.8 * param.shape[-1] ** -0.5
            noise = torch.randn(param.shape, generator=generator) * deviation
            param.copy_(noise if param.dim() > 1 else param + noise)
    model.eval().save_pretrained(folder)
    return model


def tokens(array):
    return nd.array(array, dtype="int32")


def results(name, model):
    """Returns the results of a model of transformers."""
    ids, mask, images = torch.tensor(TOKENS).long(), torch.tensor(MASK), torch.tensor(IMAGES)
    with torch.no_grad():
        if name.startswith("ViT"):
            out = model(images)
        elif name.startswith("CLIP"):
            return [model(input_ids=ids, pixel_values=images, attention_mask=mask).logits_per_image]
        elif name.startswith("T5"):
            out = model(input_ids=ids, decoder_input_ids=ids[:, :9], attention_mask=mask)
        else:
            types = torch.tensor(TYPES if name.startswith("Bert") else 0 * TYPES).long()
            out = model(input_ids=ids, token_type_ids=types, attention_mask=mask)
    return [out.logits] if "logits" in out else [out.last_hidden_state, out.pooler_output]


def called(name, net):
    """Returns the results of a network."""
    ids, mask, images = tokens(TOKENS), nd.array(MASK), nd.array(IMAGES)
    if name.startswith("ViT"):
        out = net(images)
    elif name.startswith("CLIP"):
        out = net(ids, images, mask)
    elif name.startswith("T5"):
        out = net(ids, ids[:, :9], mask)
    elif name.startswith("Bert"):
        out = net(ids, tokens(TYPES), mask)
    else:
        out = net(ids, None, mask)
    return out if isinstance(out, (list, tuple)) else [out]


def check_close(got, want):
    assert len(got) == len(want)
    for one, two in zip(got, want):
        one, two = one.asnumpy(), two.numpy()
        assert one.shape == two.shape
        if one.shape[:2] == MASK.shape:  # padding has no results
            one, two = one[MASK > 0], two[MASK > 0]
        assert np.abs(one - two).max() <= 1e-5 * max(1.0, np.abs(two).max())


@pytest.mark.parametrize("name", MODELS)
def test_results_are_those_of_transformers_also_after_saving(tmp_path, name):
    model = saved(name, tmp_path / "model")
    want = results(name, model)
    net = text.from_pretrained(tmp_path / "model")
    check_close(called(name, net), want)
    net.hybridize()
    check_close(called(name, net), want)
    net.save_parameters(tmp_path / "out", format="huggingface", shard_bytes=20000)
    again, problems = type(model).from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(problems[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    for one, two in zip(results(name, again.eval()), want):
        assert (one == two).all()


# Without padding: PyTorch computes no gradient for its embedding.
FULL = np.where(TOKENS == 1, 2, TOKENS)
FIRST, SECOND = mx.cpu(0), mx.cpu(1)
LAYERS = {"embed": FIRST, r"layers\.[01]": FIRST, r"layers\.[23]": SECOND, "norm|head": SECOND}
# name -> (inputs, labels, placement)
TRAININGS = {
    "Bert ForMaskedLM": ((tokens(FULL),), np.roll(FULL, -1, 1), LAYERS),
    "Roberta ForSequenceClassification": ((tokens(FULL),), np.array([0, 1, 6, 3]), LAYERS),
    "ViT": ((nd.array(IMAGES),), np.array([0, 1, 6, 3]), LAYERS),
    "CLIP": (
        (tokens(FULL), nd.array(IMAGES)),
        np.arange(4),
        {"text": FIRST, "image": SECOND},
    ),
    "T5": (
        (tokens(FULL), tokens(FULL[:, :9])),
        FULL[:, 1:10],
        {"embed|encoder": FIRST, "decoder|head": SECOND},
    ),
}


# At 0.01, the losses of CLIP jump, which amplifies rounding errors.
RATES = {"CLIP": 0.001}


def trained(name, net, inputs, labels, pipeline, hybrid):
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    rate = RATES.get(name, 0.01)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": rate})
    losses = []
    if pipeline:
        step = mx.parallel.TrainStep(net, loss_of, trainer, mx.parallel.Pipeline(2, "1f1b"))
        data = inputs[0] if len(inputs) == 1 else list(inputs)
        losses = [step(data, nd.array(labels)).mean().asscalar() for _ in range(6)]
    else:
        net.hybridize(hybrid)
        for _ in range(6):
            with autograd.record():
                out = net(*inputs)
                loss = loss_of(out, nd.array(labels, ctx=out.context))
            loss.backward()
            trainer.step(len(labels))
            losses.append(loss.mean().asscalar())
    return losses, [p.reduced().asnumpy() for p in net.collect_params().values()]


def trained_by_torch(name, model, labels):
    ids, images = torch.tensor(FULL).long(), torch.tensor(IMAGES)
    labels = torch.tensor(labels).long().flatten()
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=RATES.get(name, 0.01)), []
    for _ in range(6):
        optimizer.zero_grad()
        if name == "CLIP":
            out = model(input_ids=ids, pixel_values=images).logits_per_image
        elif name == "ViT":
            out = model(images).logits
        elif name == "T5":
            out = model(input_ids=ids, decoder_input_ids=ids[:, :9]).logits
        else:
            out = model(ids).logits
        loss = torch.nn.functional.cross_entropy(out.reshape(len(labels), -1), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("way", ["eager", "hybrid", "pipeline"])
@pytest.mark.parametrize("name", TRAININGS)
def test_training_losses_are_those_of_torch_and_bits_those_of_one_device(tmp_path, name, way):
    if (name, way) == ("CLIP", "pipeline"):
        pytest.skip("each image is compared with all texts, so a batch cannot be divided")
    model = saved(name, tmp_path)
    inputs, labels, placement = TRAININGS[name]
    ways = way == "pipeline", way == "hybrid"
    losses, weights = trained(name, text.from_pretrained(tmp_path), inputs, labels, *ways)
    placed = text.from_pretrained(tmp_path, ctx=placement)
    others, other_weights = trained(name, placed, inputs, labels, *ways)
    assert losses == others
    for one, two in zip(weights, other_weights):
        assert (one == two).all()
    np.testing.assert_allclose(losses, trained_by_torch(name, model, labels), rtol=1e-5)


def test_relative_positions_of_long_texts_have_the_buckets_of_transformers(tmp_path):
    model = saved("T5", tmp_path)
    long = RNG.randint(2, 63, (1, 300)).astype("int32")
    ids = torch.tensor(long).long()
    with torch.no_grad():
        want = model(input_ids=ids, decoder_input_ids=ids[:, :250]).logits.numpy()
    got = text.from_pretrained(tmp_path)(tokens(long), tokens(long[:, :250])).asnumpy()
    assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()


def test_clip_projects_texts_and_images_alone(tmp_path):
    model = saved("CLIP", tmp_path)
    net = text.from_pretrained(tmp_path)
    with torch.no_grad():
        texts = model.get_text_features(input_ids=torch.tensor(FULL).long())
        images = model.get_image_features(pixel_values=torch.tensor(IMAGES))
    texts, images = (getattr(x, "pooler_output", x) for x in (texts, images))
    check_close([net.text(tokens(FULL))], [texts])
    check_close([net.image(nd.array(IMAGES))], [images])


def test_inputs_that_do_not_fit_raise(tmp_path):
    saved("Roberta Model", tmp_path)
    with pytest.raises(ValueError, match="39 tokens need 41 positions, but there are only 40"):
        text.from_pretrained(tmp_path)(nd.zeros((1, 39), dtype="int32"))
    saved("ViT", tmp_path)
    with pytest.raises(ValueError, match=r"must have shape \(batch, 3, 16, 16\)"):
        text.from_pretrained(tmp_path)(nd.zeros((1, 3, 8, 8)))
    with pytest.raises(MXNetError, match="architectures.*BertModel"):
        text.from_config({"model_type": "bert", "architectures": ["BertForPreTraining"]})
