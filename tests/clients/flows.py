"""Small programs for published MXNet packages: random models, training steps and data pipelines.

run.py runs each in its own process.
"""

import importlib
import os
import sys
import tempfile
import types

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, nd

FLOWS = {}


def flow(package):
    """Registers a function as a flow of a package."""

    def add(function):
        FLOWS[function.__name__] = (package, function)
        return function

    return add


def finite(*arrays):
    """Asserts finite values and returns the shapes."""
    for array in arrays:
        assert np.isfinite(array.asnumpy().astype("float64")).all(), array.shape
    return " ".join("x".join(map(str, array.shape)) for array in arrays)


def trained(net, loss_of, steps=2, rate=1e-3, optimizer="sgd"):
    """Trains on one batch; losses must be finite and must change."""
    trainer = gluon.Trainer(net.collect_params(), optimizer, {"learning_rate": rate})
    losses = []
    for _ in range(steps):
        with autograd.record():
            loss = loss_of()
        loss.backward()
        trainer.step(1, ignore_stale_grad=True)
        losses.append(float(loss.asnumpy().mean()))
    assert np.isfinite(losses).all() and losses[0] != losses[-1], losses
    return f"loss {losses[0]:.4g} to {losses[-1]:.4g}"


def over_two(make, where, loss_of, optimizer="sgd"):
    """Trains a hybridized network on one device, and with the blocks in `where` on a second one.

    Losses and weights must have equal bits.
    """
    nd.ones(1, ctx=mx.cpu(1)).wait_to_read()  # devices share the threads from here on
    found = []
    for placed in (False, True):
        mx.random.seed(7)
        np.random.seed(7)
        net = make()
        if placed:
            net.place(dict.fromkeys(where, mx.cpu(1)), verbose=False)
        net.hybridize()
        loss_of(net)  # infers deferred shapes
        trainer = gluon.Trainer(net.collect_params(), optimizer, {"learning_rate": 1e-3})
        arrays = []
        for _ in range(2):
            with autograd.record():
                loss = loss_of(net)
            loss.backward()
            trainer.step(1, ignore_stale_grad=True)
            arrays.append(loss.asnumpy())
        params = net.collect_params().values()
        found.append(arrays + [param.list_data()[0].asnumpy() for param in params])
        devices = {str(ctx) for param in params for ctx in param.list_ctx()}
    assert devices == {"cpu(0)", "cpu(1)"}, devices
    assert all(np.isfinite(array).all() for array in found[0])
    different = sum(not np.array_equal(one, two) for one, two in zip(*found))
    assert not different, f"{different} of {len(found[0])} arrays differ"
    return f"{len(found[0])} arrays with the bits of one device"


def classified(size, labels=(0, 1)):
    """Returns a loss function on two random images."""
    x = nd.random.uniform(shape=(2, 3, size, size))

    def loss_of(net):
        out = net(x)
        out = out[0] if isinstance(out, (list, tuple)) else out
        return gluon.loss.SoftmaxCrossEntropyLoss()(out, nd.array(labels, ctx=out.context))

    return loss_of


def no_torch():
    """Hides PyTorch from GluonCV, which refuses current versions."""
    sys.modules["torch"] = None


# GluonCV


def cv(name, **options):
    no_torch()
    from gluoncv.model_zoo import get_model

    mx.random.seed(1)
    net = get_model(name, pretrained=False, **options)
    net.initialize(mx.init.Xavier())
    return net


@flow("gluoncv")
def cv_classification():
    said = []
    for name in (
        "resnet18_v1b",
        "mobilenetv3_small",
        "cifar_resnet20_v1",
        "resnest14",
        "se_resnet18_v1",
    ):
        net = cv(name, **({} if "cifar" in name else {"classes": 10}))
        x = nd.random.uniform(shape=(2, 3, *((32, 32) if "cifar" in name else (64, 64))))
        plain = net(x)
        net.hybridize()
        assert np.allclose(plain.asnumpy(), net(x).asnumpy(), atol=1e-3)
        loss = gluon.loss.SoftmaxCrossEntropyLoss()
        trained(net, lambda: loss(net(x), nd.array([1, 2])))
        said.append(name)
    return " ".join(said)


@flow("gluoncv")
def cv_two_devices():
    said = [
        over_two(lambda: cv(name, **options), where, classified(size))
        for name, options, where, size in (
            ("resnet18_v1b", {"classes": 10}, ["layer[34]", "fc"], 64),
            ("resnest14", {"classes": 10}, ["layer[34]", "fc"], 64),
            ("cifar_resnet20_v1", {}, [r"features\.[345]", "output"], 32),
        )
    ]
    return "; ".join(said)


@flow("gluoncv")
def cv_ssd():
    net = cv("ssd_300_vgg16_atrous_voc", pretrained_base=False)
    from gluoncv.data.batchify import Stack, Tuple
    from gluoncv.data.transforms.presets.ssd import SSDDefaultTrainTransform
    from gluoncv.loss import SSDMultiBoxLoss

    with autograd.train_mode():
        _, _, anchors = net(nd.zeros((1, 3, 300, 300)))
    image = nd.array(np.random.RandomState(0).randint(0, 255, (300, 320, 3)), dtype="uint8")
    label = np.array([[50, 60, 200, 220, 3]], "float32")
    transform = SSDDefaultTrainTransform(300, 300, anchors)
    x, cls_t, box_t = Tuple(Stack(), Stack(), Stack())([transform(image, label)] * 2)
    loss = SSDMultiBoxLoss()
    net.hybridize()

    def step():
        cls, box, _ = net(x)
        total, _, _ = loss(cls, box, cls_t, box_t)
        return total[0]

    said = trained(net, step, rate=1e-5)
    return said + " " + finite(*net(x))


@flow("gluoncv")
def cv_yolo():
    net = cv("yolo3_mobilenet1.0_voc", pretrained_base=False)
    from gluoncv.data.batchify import Stack, Tuple
    from gluoncv.data.transforms.presets.yolo import YOLO3DefaultTrainTransform

    image = nd.array(np.random.RandomState(0).randint(0, 255, (200, 220, 3)), dtype="uint8")
    label = np.array([[50, 60, 150, 180, 3, 0]], "float32")
    transform = YOLO3DefaultTrainTransform(128, 128, net)
    x, *targets, boxes = Tuple(*([Stack()] * 7))([transform(image, label)] * 2)

    def step():
        return sum(part.mean() for part in net(x, boxes, *targets))

    said = trained(net, step, rate=1e-4)
    return said + " " + finite(*net(x))


@flow("gluoncv")
def cv_faster_rcnn():
    net = cv("faster_rcnn_resnet50_v1b_voc", pretrained_base=False)
    from gluoncv.data.transforms.presets.rcnn import FasterRCNNDefaultTrainTransform

    net.collect_params().reset_ctx(mx.cpu())
    image = nd.array(np.random.RandomState(0).randint(0, 255, (120, 160, 3)), dtype="uint8")
    label = np.array([[10, 20, 90, 100, 3, 0]], "float32")
    transform = FasterRCNNDefaultTrainTransform(208, 300, net)
    x, cls_t, box_t, box_m = (
        nd.array(part).expand_dims(0) for part in (transform(image, label)[i] for i in (0, 2, 3, 4))
    )
    truth = nd.array(label[:, :4]).expand_dims(0)
    rpn_cls = gluon.loss.SigmoidBinaryCrossEntropyLoss()
    rpn_box = gluon.loss.HuberLoss(rho=1 / 9.0)
    cls_loss = gluon.loss.SoftmaxCrossEntropyLoss()

    def step():
        found = net(x, truth, nd.array(label[:, 4:5]).expand_dims(0))
        (
            cls,
            box,
            roi,
            samples,
            matches,
            rpn_score,
            rpn_boxes,
            anchors,
            cls_targets,
            box_targets,
            masks,
            _,
        ) = found
        del roi, samples, matches, anchors
        cls_t1 = cls_t.reshape((1, -1))
        rpn = rpn_cls(rpn_score.squeeze(-1), cls_t1, cls_t1 >= 0)
        total = (
            rpn.mean()
            + rpn_box(rpn_boxes, box_t.reshape((1, -1, 4)), box_m.reshape((1, -1, 4))).mean()
        )
        total = total + cls_loss(cls, cls_targets, (cls_targets.expand_dims(-1) >= 0)).mean()
        return total + rpn_box(box, box_targets, masks).mean()

    said = trained(net, step, rate=1e-5)
    return said + " " + finite(*net(x))


@flow("gluoncv")
def cv_segmentation():
    no_torch()
    from gluoncv.loss import MixSoftmaxCrossEntropyLoss
    from gluoncv.model_zoo import deeplabv3, fcn, pspnet

    said = []
    for kind in (fcn.FCN, pspnet.PSPNet, deeplabv3.DeepLabV3):
        net = kind(nclass=5, backbone="resnet50", pretrained_base=False, crop_size=96, aux=True)
        net.initialize(mx.init.Xavier())
        x = nd.random.uniform(shape=(2, 3, 96, 96))
        label = nd.array(np.random.RandomState(0).randint(0, 5, (2, 96, 96)))
        loss = MixSoftmaxCrossEntropyLoss(aux=True, aux_weight=0.5)
        trained(net, lambda: loss(*net(x), label)[0])
        said.append(finite(*net(x)))
    return "; ".join(said)


@flow("gluoncv")
def cv_pose():
    net = cv("simple_pose_resnet18_v1b", pretrained_base=False)
    from gluoncv.data.transforms.pose import get_max_pred

    x = nd.random.uniform(shape=(2, 3, 128, 96))
    net.hybridize()
    target = nd.random.uniform(shape=net(x).shape)
    said = trained(net, lambda: gluon.loss.L2Loss()(net(x), target))
    points, scores = get_max_pred(net(x))
    assert points.shape[:2] == scores.shape[:2] == (2, 17)
    return said


@flow("gluoncv")
def cv_action():
    no_torch()
    from gluoncv.model_zoo.action_recognition.actionrec_inceptionv1 import ActionRecInceptionV1
    from gluoncv.model_zoo.action_recognition.i3d_resnet import I3D_ResNetV1

    said = []
    for net, shape in (
        (ActionRecInceptionV1(nclass=10, pretrained_base=False), (2, 3, 224, 224)),
        (
            I3D_ResNetV1(
                nclass=10,
                depth=50,
                out_indices=[3],
                pretrained_base=False,
                inflate_freq=((1, 1, 1), (1, 0, 1, 0), (1, 0, 1, 0, 1, 0), (0, 1, 0)),
            ),
            (1, 3, 16, 64, 64),
        ),
    ):
        net.initialize(mx.init.Xavier(), force_reinit=True)
        x = nd.random.uniform(shape=shape)
        loss = gluon.loss.SoftmaxCrossEntropyLoss()
        said.append(trained(net, lambda: loss(net(x), nd.arange(shape[0]))))
    return "; ".join(said)


# GluonNLP


@flow("gluonnlp")
def nlp_bert():
    from gluonnlp.model import BERTModel
    from gluonnlp.model.bert import BERTClassifier, BERTEncoder

    encoder = BERTEncoder(
        num_layers=2, units=32, hidden_size=64, max_length=16, num_heads=4, dropout=0.1
    )
    bert = BERTModel(
        encoder,
        vocab_size=100,
        token_type_vocab_size=2,
        units=32,
        embed_size=32,
        use_classifier=True,
        use_decoder=True,
    )
    bert.initialize(mx.init.Normal(0.02))
    words = nd.array(np.random.RandomState(0).randint(0, 100, (2, 12)))
    kinds, lengths = nd.zeros((2, 12)), nd.array([12, 7])
    places = nd.array([[1, 2], [3, 4]])
    finite(*bert(words, kinds, lengths, places))
    bert = BERTModel(
        encoder,
        vocab_size=100,
        token_type_vocab_size=2,
        units=32,
        embed_size=32,
        use_classifier=False,
        use_decoder=False,
    )
    bert.initialize(mx.init.Normal(0.02))
    net = BERTClassifier(bert, num_classes=2, dropout=0.1)
    net.classifier.initialize()
    net.hybridize(static_alloc=True)
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    return trained(
        net, lambda: loss(net(words, kinds, lengths), nd.array([0, 1])), optimizer="bertadam"
    )


@flow("gluonnlp")
def nlp_bert_two_devices():
    from gluonnlp.model import BERTModel
    from gluonnlp.model.bert import BERTClassifier, BERTEncoder

    def make():
        encoder = BERTEncoder(
            num_layers=4, units=32, hidden_size=64, max_length=16, num_heads=4, dropout=0.1
        )
        bert = BERTModel(
            encoder,
            vocab_size=100,
            token_type_vocab_size=2,
            units=32,
            embed_size=32,
            use_classifier=False,
            use_decoder=False,
        )
        net = BERTClassifier(bert, num_classes=2, dropout=0.1)
        net.initialize(mx.init.Normal(0.02))
        return net

    words = nd.array(np.random.RandomState(0).randint(0, 100, (2, 12)))
    kinds, lengths = nd.zeros((2, 12)), nd.array([12, 7])

    def loss_of(net):
        out = net(words, kinds, lengths)
        return gluon.loss.SoftmaxCrossEntropyLoss()(out, nd.array([0, 1], ctx=out.context))

    later = [r"bert\.encoder\.transformer_cells\.[23]", r"bert\.pooler", "classifier"]
    return over_two(make, later, loss_of, "bertadam")


@flow("gluonnlp")
def nlp_language_models():
    import gluonnlp as nlp
    from gluonnlp.model import AWDRNN, StandardRNN

    x = nd.array(np.random.RandomState(0).randint(0, 50, (6, 2)))
    said = []
    for net in (
        AWDRNN(
            "lstm",
            50,
            16,
            16,
            2,
            tie_weights=True,
            dropout=0.2,
            weight_drop=0.2,
            drop_h=0.1,
            drop_i=0.1,
            drop_e=0.1,
        ),
        StandardRNN("gru", 50, 16, 16, 2, dropout=0.2, tie_weights=False),
    ):
        net.initialize(mx.init.Xavier())
        state = net.begin_state(func=nd.zeros, batch_size=2)
        loss = gluon.loss.SoftmaxCrossEntropyLoss()
        said.append(trained(net, lambda: loss(net(x, state)[0], x), rate=0.1))
    train = nlp.model.train.AWDRNN("lstm", 50, 16, 16, 2, tie_weights=True)
    train.initialize()
    out, _, raw, dropped = train(x)
    return "; ".join(said) + " " + finite(out, *raw, *dropped)


def translator():
    """Returns a small Transformer and its vocabulary."""
    import gluonnlp as nlp
    from gluonnlp.model.transformer import get_transformer_encoder_decoder
    from gluonnlp.model.translation import NMTModel

    vocab = nlp.Vocab(nlp.data.count_tokens(list("abcdefghij")))
    encoder, decoder, one_step = get_transformer_encoder_decoder(
        units=16, hidden_size=32, num_layers=2, num_heads=2, max_src_length=20, max_tgt_length=20
    )
    net = NMTModel(
        src_vocab=vocab,
        tgt_vocab=vocab,
        encoder=encoder,
        decoder=decoder,
        one_step_ahead_decoder=one_step,
        share_embed=True,
        embed_size=16,
        tie_weights=True,
    )
    net.initialize(mx.init.Xavier())
    return net, vocab


@flow("gluonnlp")
def nlp_transformer_two_devices():
    import gluonnlp as nlp

    words, lengths = nd.array(np.random.RandomState(0).randint(4, 14, (2, 7))), nd.array([7, 5])

    def loss_of(net):
        out, _ = net(words, words[:, :-1], lengths, lengths - 1)
        given = [array.as_in_context(out.context) for array in (words[:, 1:], lengths - 1)]
        return nlp.loss.MaskedSoftmaxCELoss()(out, *given)

    return "; ".join(
        over_two(lambda: translator()[0], where, loss_of, "adam")
        for where in (
            ["decoder", "one_step_ahead_decoder", "tgt_proj"],
            ["encoder"],
        )
    )


@flow("gluonnlp")
def nlp_transformer():
    import gluonnlp as nlp
    from gluonnlp.model import BeamSearchSampler, BeamSearchScorer

    net, vocab = translator()
    net.hybridize()
    words = nd.array(np.random.RandomState(0).randint(4, len(vocab), (2, 7)))
    lengths = nd.array([7, 5])
    loss = nlp.loss.MaskedSoftmaxCELoss()

    def step():
        out, _ = net(words, words[:, :-1], lengths, lengths - 1)
        return loss(out, words[:, 1:], lengths - 1).mean()

    said = trained(net, step, optimizer="adam")
    outputs, _ = net.encode(words, valid_length=lengths)
    states = net.one_step_ahead_decoder.init_state_from_encoder(outputs, lengths)
    sampler = BeamSearchSampler(
        beam_size=3,
        decoder=lambda *given: net.decode_step(*given)[:2],
        eos_id=vocab[vocab.eos_token],
        scorer=BeamSearchScorer(alpha=0.6, K=5),
        max_length=10,
    )
    samples, scores, ends = sampler(nd.array([2, 2]), states)
    assert samples.shape[:2] == scores.shape == ends.shape == (2, 3), samples.shape
    return said


@flow("gluonnlp")
def nlp_data():
    import gluonnlp as nlp

    sentences = [
        text.split() for text in ("a cat sat", "the dog ran far away", "a dog", "cat and dog sat")
    ] * 4
    vocab = nlp.Vocab(nlp.data.count_tokens(word for line in sentences for word in line))
    embedding = nlp.embedding.TokenEmbedding(unknown_token=None, allow_extend=True)
    for word in vocab.idx_to_token:
        embedding[word] = nd.ones((1, 4))
    vocab.set_embedding(embedding)
    assert vocab.embedding.idx_to_vec.shape == (len(vocab), 4)
    data = gluon.data.SimpleDataset([(vocab[line], len(line)) for line in sentences])
    batchify = nlp.data.batchify.Tuple(
        nlp.data.batchify.Pad(pad_val=0), nlp.data.batchify.Stack("float32")
    )
    sampler = nlp.data.FixedBucketSampler(
        [len(line) for line in sentences], batch_size=4, num_buckets=2, shuffle=True
    )
    loader = gluon.data.DataLoader(data, batch_sampler=sampler, batchify_fn=batchify, num_workers=2)
    count = sum(words.shape[0] for words, _ in loader)
    assert count == len(sentences), count
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "text")
        with open(path, "w") as file:
            file.write("\n".join(map(" ".join, sentences)))
        corpus = nlp.data.CorpusDataset(path, flatten=True, eos="<eos>")
        bptt = nlp.data.batchify.CorpusBPTTBatchify(vocab, seq_len=5, batch_size=2)
        x, y = bptt(corpus)[0]
        return f"{count} sentences, {finite(x, y)}"


@flow("bert_embedding")
def embedding_module():
    import bert_embedding

    return ", ".join(sorted(name for name in vars(bert_embedding) if name[0].isupper()))


# gluoncv2


@flow("gluoncv2")
def cv2_nets():
    from gluoncv2.model_provider import get_model

    said = []
    for name, size in (
        ("resnet18", 224),
        ("shufflenetv2_wd2", 224),
        ("mobilenetv2_w1", 224),
        ("seresnet10", 224),
        ("efficientnet_b0", 224),
        ("densenet121", 224),
        ("hrnet_w18_small_v1", 224),
        ("nasnet_4a1056", 224),
        ("resnet20_cifar10", 32),
        ("fishnet99", 224),
        ("darknet53", 224),
        ("sqnxt23_w1", 224),
        ("igcv3_w1", 224),
        ("bam_resnet18", 224),
        ("cbam_resnet18", 224),
        ("octresnet10_ad2", 224),
    ):
        net = get_model(name, pretrained=False)
        net.initialize(mx.init.Xavier())
        x = nd.random.uniform(shape=(2, 3, size, size))
        plain = net(x)
        net.hybridize()
        assert np.allclose(plain.asnumpy(), net(x).asnumpy(), atol=1e-3), name
        finite(plain)
        said.append(name)
    return " ".join(said)


@flow("gluoncv2")
def cv2_two_devices():
    from gluoncv2.model_provider import get_model

    def made(name):
        net = get_model(name, pretrained=False)
        net.initialize(mx.init.Xavier())
        return net

    return "; ".join(
        over_two(lambda: made(name), [r"features\.[3-9]", "output"], classified(224))
        for name in ("resnet18", "mobilenetv2_w1", "seresnet10")
    )


# GluonTS


@flow("gluonts")
def ts_training():
    import pandas as pd
    from gluonts.dataset.common import ListDataset
    from gluonts.evaluation.backtest import make_evaluation_predictions
    from gluonts.model.deepar import DeepAREstimator
    from gluonts.model.simple_feedforward import SimpleFeedForwardEstimator
    from gluonts.mx.trainer import Trainer

    start = pd.Timestamp("2020-01-01", freq="D")
    series = np.sin(np.arange(120) / 3) + np.random.RandomState(0).rand(120) + 3
    data = ListDataset([{"start": start, "target": series + i} for i in range(4)], freq="D")
    said = []
    for estimator in (
        SimpleFeedForwardEstimator(
            freq="D",
            prediction_length=5,
            context_length=10,
            trainer=Trainer(epochs=2, num_batches_per_epoch=4, hybridize=True),
        ),
        DeepAREstimator(
            freq="D",
            prediction_length=5,
            context_length=10,
            num_layers=1,
            num_cells=8,
            trainer=Trainer(epochs=2, num_batches_per_epoch=4),
        ),
    ):
        predictor = estimator.train(data)
        forecasts, _ = make_evaluation_predictions(data, predictor=predictor, num_samples=10)
        first = next(iter(forecasts))
        assert first.samples.shape == (10, 5) and np.isfinite(first.samples).all()
        said.append(type(predictor).__name__)
        with tempfile.TemporaryDirectory() as folder:
            from pathlib import Path

            from gluonts.model.predictor import Predictor

            predictor.serialize(Path(folder))
            again = Predictor.deserialize(Path(folder))
            next(iter(again.predict(data)))
    return " ".join(said)


# Sockeye


@flow("sockeye")
def sockeye_training():
    random = np.random.RandomState(0)
    with tempfile.TemporaryDirectory() as folder:
        texts = [" ".join(random.choice(list("abcdefgh"), random.randint(2, 6))) for _ in range(60)]
        source, target = os.path.join(folder, "source"), os.path.join(folder, "target")
        for path in (source, target):
            with open(path, "w") as file:
                file.write("\n".join(texts) + "\n")
        from sockeye import train

        sys.argv = ["train"]
        arguments = train.arguments.ConfigArgumentParser(description="")
        train.arguments.add_train_cli_args(arguments)
        model = os.path.join(folder, "model")
        options = arguments.parse_args(
            f"-s {source} -t {target} -vs {source} -vt {target} -o {model} --use-cpu "
            "--encoder transformer --decoder transformer --num-layers 1 "
            "--transformer-model-size 16 --num-embed 16 "
            "--transformer-attention-heads 2 --transformer-feed-forward-num-hidden 32 "
            "--batch-type sentence --batch-size 10 --max-updates 6 --checkpoint-interval 3 "
            "--max-seq-len 10 --no-bucketing --decode-and-evaluate 0 "
            "--initial-learning-rate 0.001".split()
        )
        train.train(options)
        from sockeye import translate

        parser = translate.arguments.ConfigArgumentParser(description="")
        translate.arguments.add_translate_cli_args(parser)
        output = os.path.join(folder, "output")
        translate.run_translate(
            parser.parse_args(
                f"-m {model} --use-cpu -i {source} -o {output} --beam-size 2 "
                "--max-output-length 8".split()
            )
        )
        with open(output) as file:
            return f"{len(file.read().splitlines())} lines translated"


# MXFusion, MXBoard, Keras, d2lzh


@flow("mxfusion")
def fusion_inference():
    import mxfusion as mf
    from mxfusion.components.distributions import Normal
    from mxfusion.components.variables import PositiveTransformation, Variable
    from mxfusion.inference import MAP, GradBasedInference

    model = mf.Model()
    model.mu = Variable(shape=(1,))
    model.s = Variable(shape=(1,), transformation=PositiveTransformation())
    model.Y = Normal.define_variable(mean=model.mu, variance=model.s, shape=(100,))
    data = np.random.RandomState(0).randn(100) * 2 + 3
    inference = GradBasedInference(inference_algorithm=MAP(model=model, observed=[model.Y]))
    inference.run(Y=nd.array(data), learning_rate=0.1, max_iter=500, verbose=False)
    mean = float(inference.params[model.mu].asnumpy()[0])
    variance = float(inference.params[model.s].asnumpy()[0])
    assert abs(mean - data.mean()) < 0.2 and abs(variance - data.var()) < 1, (mean, variance)
    return f"mean {mean:.3f} variance {variance:.3f}"


@flow("mxboard")
def board_writer():
    from mxboard import SummaryWriter

    with tempfile.TemporaryDirectory() as folder:
        with SummaryWriter(folder) as writer:
            writer.add_scalar("loss", 1.5, 0)
            writer.add_histogram("weight", nd.random.normal(shape=(10, 10)), 0, bins=10)
            writer.add_image("image", nd.random.uniform(shape=(2, 3, 8, 8)), 0)
            writer.add_text("text", "words", 0)
            writer.add_embedding("embedding", nd.ones((4, 3)), labels=nd.arange(4))
            writer.add_pr_curve("curve", nd.array([0, 1]), nd.array([0.2, 0.8]), 10, 0)
            net = gluon.nn.HybridSequential()
            net.add(gluon.nn.Dense(3), gluon.nn.Dense(2))
            net.initialize()
            net.hybridize()
            net(nd.ones((1, 4)))
            writer.add_graph(net)
        return f"{sum(len(files) for _, _, files in os.walk(folder))} files"


@flow("keras-mxnet")
def keras_fit():
    os.environ["KERAS_BACKEND"] = "mxnet"
    import collections
    import collections.abc

    for name in ("Iterable", "Mapping", "Sequence"):  # removed in Python 3.10
        setattr(collections, name, getattr(collections.abc, name))
    from keras.layers import Conv2D, Dense, Dropout, Flatten
    from keras.models import Sequential

    random = np.random.RandomState(0)
    x = random.rand(64, 8)
    y = (x.sum(1) > 4).astype("float32")
    net = Sequential(
        [Dense(16, activation="relu", input_dim=8), Dropout(0.1), Dense(1, activation="sigmoid")]
    )
    net.compile(optimizer="adam", loss="binary_crossentropy", metrics=["accuracy"])
    history = net.fit(x, y, epochs=5, batch_size=16, verbose=0).history["loss"]
    assert history[-1] < history[0]
    net.predict(x)
    net = Sequential(
        [
            Conv2D(4, 3, activation="relu", input_shape=(3, 8, 8), data_format="channels_first"),
            Flatten(),
            Dense(2, activation="softmax"),
        ]
    )
    net.compile(optimizer="sgd", loss="categorical_crossentropy")
    net.fit(random.rand(16, 3, 8, 8), np.eye(2)[random.randint(0, 2, 16)], epochs=2, verbose=0)
    return f"loss {history[0]:.3f} to {history[-1]:.3f}"


@flow("d2lzh")
def d2lzh_functions():
    import d2lzh

    net = gluon.nn.Dense(1)
    net.initialize()
    w, b = nd.ones((2, 1)), nd.zeros((1,))
    x = nd.random.normal(shape=(20, 2))
    y = d2lzh.linreg(x, w, b)
    w.attach_grad()
    b.attach_grad()
    with autograd.record():
        loss = d2lzh.squared_loss(d2lzh.linreg(x, w, b), y + 1).sum()
    loss.backward()
    d2lzh.sgd([w, b], 0.1, 20)
    data = gluon.data.ArrayDataset(x, nd.array(np.arange(20) % 2))
    loader = gluon.data.DataLoader(data, 5)
    net = gluon.nn.Dense(2)
    net.initialize()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    d2lzh.train(loader, loader, net, gluon.loss.SoftmaxCrossEntropyLoss(), trainer, [mx.cpu()], 1)
    d2lzh.train_ch3(
        net, loader, loader, gluon.loss.SoftmaxCrossEntropyLoss(), 1, 5, None, None, trainer
    )
    assert d2lzh.corr2d(nd.ones((3, 3)), nd.ones((2, 2))).shape == (2, 2)
    assert d2lzh.bbox_to_rect([0, 0, 1, 1], "red") is not None
    return finite(w, b, w)


@flow("gluonfr")
def fr_losses():
    from gluonfr.loss import ArcLoss, CosLoss, TripletLoss
    from gluonfr.nn.basic_blocks import NormDense

    net = NormDense(5, in_units=8)
    net.initialize()
    x = nd.random.normal(shape=(4, 8))
    label = nd.array([0, 1, 2, 3])
    said = [
        trained(net, lambda: loss(net(x), label))
        for loss in (ArcLoss(5, 0.5, 32, False), CosLoss(5, 0.2, 32))
    ]
    assert TripletLoss is not None
    return "; ".join(said)


def main():
    package, function = FLOWS[sys.argv[1]]
    assert isinstance(importlib.import_module("mxnet"), types.ModuleType)
    print("OK", package, function(), flush=True)


if __name__ == "__main__":
    main()
