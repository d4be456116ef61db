"""Vocabularies and token embeddings."""

import collections
import hashlib
import zipfile

import numpy as np
import pytest

import mpgluon as mx
from mpgluon.contrib import text
from support.calls import raises

COUNTER = collections.Counter({"d": 1, "b": 3, "c": 3, "a": 2, "e": 1})


def written(folder, name, *lines):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))
    return str(path)


def test_count_tokens_from_str_counts_tokens():
    count = text.utils.count_tokens_from_str
    assert count("*Life*is*great*!*\n*life*is*Good*.*\n", r"\*", r"\n", True) == {
        "life": 2,
        "is": 2,
        "great": 1,
        "!": 1,
        "good": 1,
        ".": 1,
    }
    # delimiters are matched before lowercasing
    assert count("aSbsc", "s", "\n", to_lower=True) == {"asb": 1, "c": 1}
    before = collections.Counter({"is": 2})
    assert count(" is  so ", counter_to_update=before) is before
    assert before == {"is": 3, "so": 1}


@pytest.mark.parametrize(
    "options, tokens",
    [
        ({}, "<unk> b c a d e"),
        ({"most_freq_count": 3}, "<unk> b c a"),
        ({"min_freq": 2}, "<unk> b c a"),
        ({"min_freq": 4}, "<unk>"),
        ({"most_freq_count": 0}, "<unk>"),
        ({"unknown_token": "a"}, "a b c d e"),
        ({"reserved_tokens": ["<pad>", "c"], "most_freq_count": 2}, "<unk> <pad> c b a"),
    ],
)
def test_vocabulary_orders_and_limits_tokens(options, tokens):
    vocabulary = text.vocab.Vocabulary(COUNTER, **options)
    assert vocabulary.idx_to_token == tokens.split()
    assert vocabulary.token_to_idx == {token: i for i, token in enumerate(tokens.split())}
    assert len(vocabulary) == len(tokens.split())
    assert vocabulary.reserved_tokens == options.get("reserved_tokens")
    assert vocabulary.unknown_token == options.get("unknown_token", "<unk>")


def test_vocabulary_maps_tokens_and_indices():
    vocabulary = text.vocab.Vocabulary(COUNTER)
    assert vocabulary.to_indices("c") == 2 and vocabulary.to_indices(["z", "b"]) == [0, 1]
    assert vocabulary.to_tokens(2) == "c" and vocabulary.to_tokens([0, 1]) == ["<unk>", "b"]
    assert "6 tokens" in repr(vocabulary)
    for number in (6, -1, "b", 1.5):
        with pytest.raises(ValueError, match="is out of range|must be an int"):
            vocabulary.to_tokens([0, number])
    for options in (
        {"min_freq": 0},
        {"reserved_tokens": ["x", "x"]},
        {"reserved_tokens": ["<unk>"]},
        {"counter": {"a": 1}},
    ):
        with pytest.raises(AssertionError, match="min_freq|must be unique|Counter, not dict"):
            text.vocab.Vocabulary(**options)


def test_custom_embedding_reads_and_updates_vectors(tmp_path):
    path = written(tmp_path, "v.txt", "a|1|2", "<x>|5|6", "b|3|4", "<x>|7|8", "header|2", "a|9|9")
    with pytest.warns(
        UserWarning, match="line (4: <x> already has a vector|5: only one number|6: a is)"
    ):
        words = text.embedding.CustomEmbedding(path, "|", unknown_token="<x>")
    assert words.idx_to_token == ["<x>", "a", "b"] and words.vec_len == 2
    np.testing.assert_array_equal(words.idx_to_vec.asnumpy(), [[5, 6], [1, 2], [3, 4]])
    np.testing.assert_array_equal(words.get_vecs_by_tokens("b").asnumpy(), [3, 4])
    np.testing.assert_array_equal(
        words.get_vecs_by_tokens(["B", "z"], lower_case_backup=True).asnumpy(), [[3, 4], [5, 6]]
    )
    words.update_token_vectors("a", mx.nd.array([7, 7]))
    words.update_token_vectors(["b", "<x>"], mx.nd.array([[8, 8], [9, 9]]))
    np.testing.assert_array_equal(words.idx_to_vec.asnumpy(), [[9, 9], [7, 7], [8, 8]])
    with pytest.raises(ValueError, match="are unknown; pass the unknown token '<x>'"):
        words.update_token_vectors(["b", "z"], mx.nd.zeros((2, 2)))
    with pytest.raises(AssertionError, match=r"of shape \(2, 2\), not \(2,\)"):
        words.update_token_vectors(["a", "b"], mx.nd.zeros(2))


def test_embeddings_follow_vocabulary_order(tmp_path):
    path = written(tmp_path, "v.txt", "a 1 2", "b 3 4")
    vocabulary = text.vocab.Vocabulary(COUNTER, most_freq_count=3, reserved_tokens=["<pad>"])
    words = text.embedding.CustomEmbedding(
        path, init_unknown_vec=lambda shape: mx.nd.full(shape, 0.5), vocabulary=vocabulary
    )
    assert words.to_tokens([1, 2]) == ["<pad>", "b"] and words.reserved_tokens == ["<pad>"]
    expected = np.array([[0.5, 0.5], [0.5, 0.5], [3, 4], [0.5, 0.5], [1, 2]])
    np.testing.assert_array_equal(words.idx_to_vec.asnumpy(), expected)
    other = text.embedding.CustomEmbedding(written(tmp_path, "w.txt", "b 1 1 1", "c 2 2 2"))
    both = text.embedding.CompositeEmbedding(vocabulary, [words, other])
    more = [[0, 0, 0], [0, 0, 0], [1, 1, 1], [2, 2, 2], [0, 0, 0]]
    np.testing.assert_array_equal(both.idx_to_vec.asnumpy(), np.hstack([expected, more]))
    with pytest.raises(AssertionError, match="must be embeddings, not Vocabulary"):
        text.embedding.CompositeEmbedding(vocabulary, vocabulary)
    with pytest.raises(AssertionError, match="must be a Vocabulary, not list"):
        text.embedding.CompositeEmbedding([], words)


@pytest.mark.parametrize(
    "lines, error, message",
    [
        ([], ValueError, "has no token vectors"),
        (["a"], AssertionError, "line 1: expected a token and its numbers"),
        (["a 1 2", "b 1 x"], ValueError, "line 2: could not convert"),
        (
            ["a 1 2", "b 1 2 3"],
            AssertionError,
            "line 2: b has 3 numbers, but the tokens before it have 2",
        ),
    ],
)
def test_damaged_embedding_file_is_refused(tmp_path, lines, error, message):
    with pytest.raises(error, match=message):
        text.embedding.CustomEmbedding(written(tmp_path, "v.txt", *lines))


def test_pretrained_embedding_files_are_listed_and_verified(tmp_path, monkeypatch):
    create, names = text.embedding.create, text.embedding.get_pretrained_file_names
    assert len(names("glove")) == 10 and len(names("fasttext")) == 327
    assert set(names()) >= {"glove", "fasttext"}
    with pytest.raises(KeyError, match="unknown embedding 'word2vec'; expected one of glove"):
        names("word2vec")
    with pytest.raises(KeyError, match="GloVe has no file 'glove.txt'"):
        create("GloVe", pretrained_file_name="glove.txt")
    monkeypatch.delenv("MXNET_GLUON_REPO", raising=False)
    root = str(tmp_path / "root")
    with pytest.raises(FileNotFoundError, match=r"wiki\.simple\.vec; put the file there"):
        create("fasttext", embedding_root=root)
    written(tmp_path, "root/glove/glove.6B.50d.txt", "a 1 2")
    with pytest.raises(ValueError, match="not the file that MXNet published"):
        create("glove", pretrained_file_name="glove.6B.50d.txt", embedding_root=root)
    written(tmp_path, "root/fasttext/wiki.simple.vec", "2 2", "a 1 2", "b 3 4")
    with pytest.warns(UserWarning, match="likely a header"):
        words = create("fasttext", embedding_root=root)
    assert words.idx_to_token == ["<unk>", "a", "b"]


def test_pretrained_embeddings_are_fetched_from_repository(tmp_path, monkeypatch):
    content = b"a 1 2\nb 3 4\n"
    name = "glove.twitter.27B.25d.txt"
    monkeypatch.setitem(text.embedding.GloVe.pretrained_file_name_sha1, name, None)
    folder = tmp_path / "repository/gluon/embeddings/glove"
    folder.mkdir(parents=True)
    with zipfile.ZipFile(folder / "glove.twitter.27B.zip", "w") as archive:
        archive.writestr(name, content)
    monkeypatch.setenv("MXNET_GLUON_REPO", str(tmp_path / "repository"))
    root = str(tmp_path / "root")
    sha1 = hashlib.sha1(content).hexdigest()
    monkeypatch.setitem(text.embedding.GloVe.pretrained_file_name_sha1, name, sha1)
    words = text.embedding.GloVe(name, root)
    np.testing.assert_array_equal(words.get_vecs_by_tokens("b").asnumpy(), [3, 4])
    monkeypatch.setitem(text.embedding.GloVe.pretrained_file_name_sha1, name, "0" * 40)
    with pytest.raises(ValueError, match="does not hold the glove.twitter.27B.25d.txt that MXNet"):
        text.embedding.GloVe(name, root)


TOKENS = " \n = Title = \n \n a b <unk> a \n\n b c \n"


def test_wikitext_labels_are_tokens_shifted_by_one(tmp_path):
    for folder, make in (
        ("wikitext-2", mx.gluon.contrib.data.text.WikiText2),
        ("wikitext-103", mx.gluon.contrib.data.text.WikiText103),
    ):
        root = tmp_path / folder
        for segment in ("train", "valid", "test"):
            written(root, f"wiki.{segment}.tokens", TOKENS.rstrip("\n"))
        data = make(str(root), seq_len=4)
        words = "= Title = <eos> a b <unk> a <eos> b c <eos>".split()
        assert len(data) == 2 and data.frequencies["a"] == 2 and data.frequencies["<eos>"] == 0
        known = data.vocabulary.to_tokens
        for row, begin in enumerate((0, 4)):
            sample, label = data[row]
            assert sample.dtype == label.dtype == np.int32
            assert known(sample.asnumpy().tolist()) == words[begin : begin + 4]
            assert known(label.asnumpy().tolist()) == words[begin + 1 : begin + 5]
        written(root, "wiki.valid.tokens", "zebra a b c")
        other = make(str(root), "validation", data.vocabulary, 2)
        assert other.vocabulary is data.vocabulary
        assert known(other[0][0].asnumpy().tolist()) == ["<unk>", "a"]
        assert other.frequencies == {"zebra": 1, "a": 1, "b": 1, "c": 1}
        archive = tmp_path / "archive"
        archive.mkdir(exist_ok=True)
        with zipfile.ZipFile(archive / f"{folder}-v1.zip", "w") as file:
            file.writestr(f"{folder}/", "")
            file.writestr(f"{folder}/wiki.test.tokens", TOKENS)
        assert len(make(str(archive), "test", seq_len=11)) == 1


def test_invalid_wikitext_files_are_refused(tmp_path):
    make = mx.gluon.contrib.data.text.WikiText2
    with pytest.raises(FileNotFoundError, match=r"wiki\.valid\.tokens in .*wikitext-2-v1\.zip"):
        make(str(tmp_path), "validation")
    for options, message in (
        (dict(segment="valid"), "train, validation, test, not 'valid'"),
        (dict(seq_len=0), "seq_len must be at least 1"),
    ):
        raises(mx.MXNetError, message, lambda: make(str(tmp_path), **options))
    written(tmp_path, "wiki.train.tokens", "a b c")
    with pytest.raises(mx.MXNetError, match=r"tokens has only 4 tokens, but seq_len is 35"):
        make(str(tmp_path))
    (tmp_path / "wiki.train.tokens").write_bytes(b"a \xff b")
    raises(mx.MXNetError, r"wiki\.train\.tokens is damaged", lambda: make(str(tmp_path)))
    archive = tmp_path / "wikitext-2-v1.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("../wiki.test.tokens", TOKENS)
    whole = archive.read_bytes()
    assert len(make(str(tmp_path), "test", seq_len=3)) == 3
    assert not list(tmp_path.parent.glob("wiki*"))
    for end in range(len(whole)):
        archive.write_bytes(whole[:end])
        raises(mx.MXNetError, r"wikitext-2-v1\.zip is damaged", lambda: make(str(tmp_path), "test"))
