"""Tokenizers of folders, and generation from text to text. Nothing is downloaded."""

import builtins
import json

import pytest

from mpgluon.base import MXNetError
from mpgluon.gluon.model_zoo import text
from support.networks import decoder

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}[{{ message['role'] }}]{{ message['content'] }}"
    "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)
TEXTS = ["hello world", "hel\u20aco", "low"]


@pytest.fixture(name="folder")
def folder_fixture(tmp_path):
    """A byte-level tokenizer of 97 tokens, as the tokenizers of GPT-2 and Llama 3."""
    tokenizers = pytest.importorskip("tokenizers")
    own = tokenizers.Tokenizer(tokenizers.models.BPE())
    own.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    own.decoder = tokenizers.decoders.ByteLevel()
    letters = sorted(
        {one for part in TEXTS for byte in part.encode() for one in letter(tokenizers, byte)}
    )
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=40, special_tokens=["<s>", "</s>"], initial_alphabet=letters
    )
    own.train_from_iterator([*TEXTS, "abcdefghijklmnopqrstuvwxyz[]"], trainer)
    own.add_tokens([f"extra{i}" for i in range(97 - own.get_vocab_size())])
    own.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", own.token_to_id("<s>"))]
    )
    own.save(str(tmp_path / "tokenizer.json"))
    config = {
        "bos_token": "<s>",
        "eos_token": {"content": "</s>", "special": True},
        "chat_template": TEMPLATE,
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    return tmp_path


def letter(tokenizers, byte):
    """Returns the letters for a byte in a byte-level tokenizer."""
    if byte < 128:
        given = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        return given.pre_tokenize_str(chr(byte))[0][0]
    return [chr(byte if byte >= 0xA1 else 256 + 33 + 1 + byte - 128)]


def test_text_becomes_tokens_and_text(folder):
    own = text.tokenizer(folder)
    for given in TEXTS:
        tokens = own.encode(given)
        assert tokens[0] == 0 and own.encode(given, special=False) == tokens[1:]
        assert own.decode(tokens) == given and own.decode(tokens, special=True) == "<s>" + given
    assert own.stop == [1]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 5]}))
    assert text.tokenizer(str(folder)).stop == [1, 5]


def test_messages_are_formatted_by_the_chat_template(folder):
    own = text.tokenizer(folder)
    messages = [{"role": "user", "content": "hello"}]
    assert own.chat(messages) == "<s>[user]hello[assistant]"
    assert own.chat(messages, reply=False) == "<s>[user]hello"
    net = decoder()
    prompt = own.encode(own.chat(messages), special=False)
    assert prompt.count(0) == 1
    (new,) = text.generate(net, [prompt], max_new=6, tokenizer=own)
    assert text.generate(net, messages, max_new=6, tokenizer=own) == own.decode(new)
    for named in ([{"name": "default", "template": "x"}], None):
        (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
        if named:
            assert text.tokenizer(folder).chat(messages) == "x"
    with pytest.raises(ValueError, match="no chat template"):
        text.tokenizer(folder).chat(messages)
    (folder / "chat_template.jinja").write_text("{{ raise_exception('no ' + messages[0].role) }}")
    with pytest.raises(Exception, match="no user"):
        text.tokenizer(folder).chat(messages)


def test_formatted_chats_get_no_second_special_tokens(folder):
    tokenizers = pytest.importorskip("tokenizers")
    own, net = text.tokenizer(folder), decoder()
    messages = [{"role": "user", "content": "hello"}]
    prompt = own.chat(messages)
    assert own.encode(prompt) == own.encode(str(prompt), special=False)
    assert own.encode(prompt, special=True).count(0) == 2
    assert own.encode(prompt + "low").count(0) == 1
    want = text.generate(net, messages, max_new=6, tokenizer=own)
    assert text.generate(net, prompt, max_new=6, tokenizer=own) == want
    assert text.generate(net, [prompt, "low"], max_new=6, tokenizer=own)[0] == want
    raw = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert text.generate(net, prompt, max_new=6, tokenizer=raw, stop=1) == want


def test_calls_of_transformers_name_the_functions(folder):
    own = text.tokenizer(folder)
    messages = [{"role": "user", "content": "hello"}]
    assert own.chat(messages, add_generation_prompt=False) == own.chat(messages, reply=False)
    assert own.chat(messages, bos_token="") == "[user]hello[assistant]"
    for wrong in ("hi", messages[0], [messages]):
        with pytest.raises(TypeError, match="chat: messages must be a list of dicts"):
            own.chat(wrong)
    with pytest.raises(TypeError, match=r"use tokenizer\.encode\(text\)"):
        own("hi")
    with pytest.raises(AttributeError, match=r"use tokenizer\.chat\(messages\)"):
        own.apply_chat_template(messages)
    assert "apply_chat_template" not in dir(own) and "chat" in dir(own)


def test_prompts_may_be_several_chats(folder):
    own, net = text.tokenizer(folder), decoder()
    chats = [
        [{"role": "user", "content": "hello"}],
        [{"role": "user", "content": "a"}, {"role": "system", "content": "b c"}],
    ]
    one_by_one = [text.generate(net, chat, max_new=6, tokenizer=own) for chat in chats]
    assert text.generate(net, chats, max_new=6, tokenizer=own) == one_by_one
    plain = text.generate(net, TEXTS[0], max_new=6, tokenizer=own)
    mixed = text.generate(net, [chats[1], TEXTS[0]], max_new=6, tokenizer=own)
    assert mixed == [one_by_one[1], plain]
    with pytest.raises(ValueError, match="strings or chats; pass tokenizer"):
        text.generate(net, chats)
    with pytest.raises(TypeError, match="prompt 1 must be a string or a chat like the others"):
        text.generate(net, [chats[0], [1, 2]], tokenizer=own)


def test_templates_have_the_functions_of_transformers(folder):
    source = "{{ messages | tojson(ensure_ascii=true) }}{{ strftime_now('%Y') | length }}"
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": source}))
    assert text.tokenizer(folder).chat([{"a": "<\u20ac"}]) == '[{"a": "<\\u20ac"}]4'


@pytest.mark.parametrize(
    "name", ["tokenizer.json", "tokenizer_config.json", "generation_config.json"]
)
@pytest.mark.parametrize("content", ["[1]", "{"])
def test_damaged_configs_name_their_file(folder, name, content):
    (folder / name).write_text(content)
    with pytest.raises(MXNetError, match=f"{name}' is damaged"):
        text.tokenizer(folder)


@pytest.mark.parametrize("options", [{}, {"draft": 3}, {"num_beams": 2}])
def test_texts_are_continued_as_their_tokens(folder, options):
    own, net = text.tokenizer(folder), decoder()
    tokens = text.generate(net, [own.encode(one) for one in TEXTS], max_new=12, stop=[1], **options)
    expected = [own.decode(one) for one in tokens]
    assert text.generate(net, TEXTS, max_new=12, tokenizer=own, **options) == expected
    one = text.generate(net, TEXTS[0], max_new=12, tokenizer=own, **options)
    assert one == expected[0]


def test_streams_of_text_add_up_to_the_result(folder):
    own, net = text.tokenizer(folder), decoder()
    draw = dict(max_new=40, temperature=3.0, tokenizer=own)
    for seed in range(10):
        parts = [[], [], []]
        stream = lambda i, part, parts=parts: parts[i].append(part)
        whole = text.generate(net, TEXTS, seed=seed, stream=stream, **draw)
        assert ["".join(one) for one in parts] == whole
        tokens = text.generate(
            net, [own.encode(one) for one in TEXTS], seed=seed, **{**draw, "stop": 1}
        )
        assert [own.decode(one) for one in tokens] == whole
        stop = whole[0][5:7]
        cut = text.generate(net, TEXTS[0], seed=seed, stop=[stop, 1], **draw)
        assert cut == whole[0][: whole[0].index(stop)]


def test_tokenizers_of_other_packages_are_accepted(folder):
    tokenizers = pytest.importorskip("tokenizers")
    net, raw = decoder(), tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    expected = text.generate(net, TEXTS, max_new=9, tokenizer=text.tokenizer(folder), stop=())
    assert text.generate(net, TEXTS, max_new=9, tokenizer=raw) == expected
    with pytest.raises(TypeError, match="text.tokenizer"):
        text.generate(net, [{"role": "user", "content": "a"}], tokenizer=raw)


def test_transformers_formats_and_decodes_alike(folder):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"),
        bos_token="<s>",
        eos_token="</s>",
        chat_template=TEMPLATE,
    )
    own = text.tokenizer(folder)
    for given in TEXTS:
        assert theirs.encode(given) == own.encode(given)
        assert theirs.decode(own.encode(given), skip_special_tokens=True) == given
    messages = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "low"}]
    formatted = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert own.chat(messages) == formatted
    net = decoder()
    assert text.generate(net, TEXTS, max_new=9, tokenizer=theirs) == text.generate(
        net, TEXTS, max_new=9, tokenizer=own, stop=()
    )


def test_missing_packages_and_files_are_named(monkeypatch, tmp_path):
    load = builtins.__import__

    def without(name, *given, **more):
        if name.partition(".")[0] in ("tokenizers", "jinja2"):
            raise ImportError(name)
        return load(name, *given, **more)

    with monkeypatch.context() as patch:
        patch.setattr(builtins, "__import__", without)
        with pytest.raises(ImportError, match=r"pip install mpgluon\[text\]"):
            text.tokenizer(tmp_path)
        own = text.Tokenizer.__new__(text.Tokenizer)
        own.template = TEMPLATE
        with pytest.raises(ImportError, match=r"jinja2; run: pip install mpgluon\[text\]"):
            own.chat([])
    pytest.importorskip("tokenizers")
    with pytest.raises(ValueError, match=r"no tokenizer\.json"):
        text.tokenizer(tmp_path)
