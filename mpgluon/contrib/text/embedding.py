"""Token embeddings, read from text files with a token and its numbers in each line."""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ... import ndarray as nd
from ...base import MXNetAssertionError, data_dir, lines_of
from ...gluon._archives import fetch_unpacked
from ...gluon._repository import repository_file_url
from ...gluon.utils import check_sha1
from ...registry import get_create_func, get_register_func, get_registry
from ._files import FAST_TEXT, GLOVE
from .vocab import Vocabulary

if TYPE_CHECKING:
    from collections.abc import Callable

    from ... import NDArray
    from ..._internal.types import Register

__all__ = [
    "CompositeEmbedding",
    "CustomEmbedding",
    "FastText",
    "GloVe",
    "create",
    "get_pretrained_file_names",
    "register",
]


class _TokenEmbedding(Vocabulary):
    """The base of embeddings: a vocabulary with a vector for each token.

    The vector of the unknown token is read from the file if present there. Otherwise, it is
    ``init_unknown_vec(shape)``.
    """

    # The files of a family, with their SHA-1 if known.
    pretrained_file_name_sha1: ClassVar[dict[str, str | None]] = {}

    _idx_to_vec: NDArray
    _vec_len: int

    def _load_embedding(self, path, elem_delim, init_unknown_vec, encoding="utf8", vocabulary=None):
        """Reads the vectors of a file for all its tokens, or only for the tokens of a
        vocabulary."""
        path = os.path.expanduser(path)
        if not os.path.isfile(path):
            raise ValueError(f"token vector file {path} does not exist")
        vectors, of_unknown = [], None
        for number, line in lines_of(path, encoding):
            token, vector = self._parse(line, elem_delim, f"{path}, line {number}")
            if token == self._unknown_token and of_unknown is None:
                of_unknown = vector
            elif token in self._token_to_idx:
                warnings.warn(
                    f"{path}, line {number}: token {token} already has a vector; this one is "
                    "skipped",
                    stacklevel=4,
                )
            elif len(vector) == 1:
                warnings.warn(
                    f"{path}, line {number}: only one number after {token}; the line is likely "
                    "a header and is skipped",
                    stacklevel=4,
                )
            elif vectors and len(vector) != len(vectors[0]):
                raise MXNetAssertionError(
                    f"{path}, line {number}: {token} has {len(vector)} numbers, but the tokens "
                    f"before it have {len(vectors[0])}"
                )
            else:
                vectors.append(vector)
                self._token_to_idx[token] = len(self._idx_to_token)
                self._idx_to_token.append(token)
        if not vectors:
            raise ValueError(f"{path} has no token vectors")
        self._vec_len = len(vectors[0])
        reserved = len(self._idx_to_token) - len(vectors)
        self._idx_to_vec = nd.array(
            np.concatenate([np.zeros((reserved, self._vec_len), np.float32), vectors])
        )
        if of_unknown is None:
            self._idx_to_vec[0] = init_unknown_vec(shape=self._vec_len)
        else:
            self._idx_to_vec[0] = nd.array(of_unknown)
        if vocabulary is not None:
            self._take([self], vocabulary)

    @staticmethod
    def _parse(line, elem_delim, where):
        """Returns the token of a line, and its vector."""
        token, *numbers = line.rstrip().split(elem_delim)
        if not numbers:
            raise MXNetAssertionError(
                f"{where}: expected a token and its numbers, separated by {elem_delim!r}"
            )
        try:
            return token, np.array(numbers, np.float32)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None

    def _take(self, embeddings, vocabulary):
        """Adopts the vocabulary, with the concatenated vectors of all embeddings."""
        if not isinstance(vocabulary, Vocabulary):
            raise MXNetAssertionError(
                f"vocabulary must be a Vocabulary, not {type(vocabulary).__name__}"
            )
        tokens = list(vocabulary.idx_to_token)
        parts = [
            nd.concat(e.idx_to_vec[:1], e.get_vecs_by_tokens(tokens[1:]), dim=0)
            if len(tokens) > 1
            else e.idx_to_vec[:1]
            for e in embeddings
        ]
        self._idx_to_vec = nd.concat(*parts, dim=1)
        self._vec_len = self._idx_to_vec.shape[1]
        self._idx_to_token, self._token_to_idx = tokens, dict(vocabulary.token_to_idx)
        self._unknown_token = vocabulary.unknown_token
        reserved = vocabulary.reserved_tokens
        self._reserved_tokens = None if reserved is None else list(reserved)

    @classmethod
    def _check_pretrained_file_names(cls, pretrained_file_name: str) -> None:
        if pretrained_file_name not in cls.pretrained_file_name_sha1:
            names = list(cls.pretrained_file_name_sha1)
            raise KeyError(
                f"{cls.__name__} has no file {pretrained_file_name!r}; it has "
                f"{', '.join(names[:12])}{', ...' if len(names) > 12 else ''}"
            )

    @classmethod
    def _archive_of(cls, file):
        """Returns the name of the zip archive that contains the file."""
        return os.path.splitext(file)[0] + ".zip"

    @classmethod
    def _get_pretrained_file(cls, embedding_root: str | None, pretrained_file_name: str) -> str:
        """Returns the path of a file that MXNet published. If the file is missing, it is downloaded
        if MXNET_GLUON_REPO is set."""
        cls._check_pretrained_file_names(pretrained_file_name)
        family, sha1 = cls.__name__.lower(), cls.pretrained_file_name_sha1[pretrained_file_name]
        root = os.path.join(data_dir(), "embeddings") if embedding_root is None else embedding_root
        path = os.path.join(os.path.expanduser(root), family, pretrained_file_name)
        there = os.path.exists(path)
        if there and (sha1 is None or check_sha1(path, sha1)):
            return path
        archive = cls._archive_of(pretrained_file_name)
        if os.environ.get("MXNET_GLUON_REPO"):
            fetch_unpacked(repository_file_url(f"gluon/embeddings/{family}", archive), path, sha1)
            return path
        if there:
            raise ValueError(
                f"{path} is not the file that MXNet published (SHA-1 {sha1}); load your own "
                "file with CustomEmbedding"
            )
        raise FileNotFoundError(
            f"the vectors of {cls.__name__} are not at {path}; put the file there (from "
            f"{archive}), set embedding_root to the parent of its folder, set MXNET_GLUON_REPO "
            "to an address that has it, or load your own file with CustomEmbedding"
        )

    @property
    def vec_len(self) -> int:
        """The length of a vector."""
        return self._vec_len

    @property
    def idx_to_vec(self) -> NDArray:
        """The vectors by token index: (tokens, vec_len) of float32."""
        return self._idx_to_vec

    def get_vecs_by_tokens(
        self, tokens: str | list[str], lower_case_backup: bool = False
    ) -> NDArray:
        """Returns the vectors of tokens.

        Parameters
        ----------
        tokens : str, or list of str
            The tokens; an unknown one has the unknown token's vector.
        lower_case_backup : bool, default False
            True to look up an unknown token in lower case as well.

        Returns
        -------
        NDArray
            (vec_len,) of a token, (tokens, vec_len) of a list.
        """
        known = self._token_to_idx
        indices = [
            known.get(token, known.get(token.lower(), 0) if lower_case_backup else 0)
            for token in (tokens if isinstance(tokens, list) else [tokens])
        ]
        vectors = nd.take(self._idx_to_vec, nd.array(indices, dtype="int64"))
        return vectors if isinstance(tokens, list) else vectors[0]

    def update_token_vectors(self, tokens: str | list[str], new_vectors: NDArray) -> None:
        """Sets the vectors of tokens.

        Parameters
        ----------
        tokens : str, or list of str
            The tokens; ValueError for an unknown one, except the unknown token itself.
        new_vectors : NDArray
            (tokens, vec_len), or (vec_len,) for a single token.
        """
        tokens = tokens if isinstance(tokens, list) else [tokens]
        unknown = [token for token in tokens if token not in self._token_to_idx]
        if unknown:
            raise ValueError(
                f"{unknown} are unknown; pass the unknown token {self._unknown_token!r} itself "
                "to change its vector"
            )
        shapes = [(len(tokens), self._vec_len), *([(self._vec_len,)] if len(tokens) == 1 else [])]
        if not isinstance(new_vectors, nd.NDArray) or new_vectors.shape not in shapes:
            raise MXNetAssertionError(
                f"new_vectors must be an NDArray of shape {' or '.join(map(str, shapes))}, not "
                f"{getattr(new_vectors, 'shape', type(new_vectors).__name__)}"
            )
        rows = nd.array([self._token_to_idx[token] for token in tokens], dtype="int64")
        self._idx_to_vec[rows] = new_vectors.reshape((len(tokens), self._vec_len))


register: Register = get_register_func(_TokenEmbedding, "token embedding")


def create(embedding_name: str, **kwargs: Any) -> _TokenEmbedding:
    """Creates an embedding by the name of its class.

    Parameters
    ----------
    embedding_name : str
        'glove', 'fasttext', or the name of a registered class; the case is ignored.
    **kwargs
        The parameters of the class.

    Returns
    -------
    An embedding.
    """
    return get_create_func(_TokenEmbedding, "token embedding")(embedding_name, **kwargs)


def get_pretrained_file_names(
    embedding_name: str | None = None,
) -> list[str] | dict[str, list[str]]:
    """Returns the names of the vector files that MXNet published.

    Parameters
    ----------
    embedding_name : str, optional
        'glove' or 'fasttext'; KeyError for any other name. By default all.

    Returns
    -------
    list of str, or dict of str to list of str
        The files; a dict by embedding if none is named.

    Examples
    --------
    >>> mx.contrib.text.embedding.get_pretrained_file_names("glove")[:2]
    ['glove.42B.300d.txt', 'glove.6B.50d.txt']
    """
    families = {
        name: list(family.pretrained_file_name_sha1)
        for name, family in get_registry(_TokenEmbedding).items()
    }
    if embedding_name is None:
        return families
    if embedding_name not in families:
        raise KeyError(
            f"unknown embedding {embedding_name!r}; expected one of {', '.join(families)}"
        )
    return families[embedding_name]


@register
class GloVe(_TokenEmbedding):
    """GloVe embeddings (Pennington et al., GloVe: global vectors for word representation, 2014).

    Parameters
    ----------
    pretrained_file_name : str, default 'glove.840B.300d.txt'
        One of ``get_pretrained_file_names('glove')``; KeyError for any other name,
        FileNotFoundError if the file is missing and ``MXNET_GLUON_REPO`` is not set.
    embedding_root : str, default $MXNET_HOME/embeddings
        The folder that contains the folder 'glove' with the file.
    init_unknown_vec : function, default nd.zeros
        Creates the vector for unknown tokens from its shape.
    vocabulary : Vocabulary, optional
        The tokens to keep; by default all of the file.
    **kwargs
        Parameters of `Vocabulary`.

    Examples
    --------
    >>> words = mx.contrib.text.embedding.GloVe("glove.6B.50d.txt")  # doctest: +SKIP
    >>> words.get_vecs_by_tokens("hello").shape  # doctest: +SKIP
    (50,)
    """

    pretrained_file_name_sha1 = GLOVE

    def __init__(
        self,
        pretrained_file_name: str = "glove.840B.300d.txt",
        embedding_root: str | None = None,
        init_unknown_vec: Callable[..., NDArray] = nd.zeros,
        vocabulary: Vocabulary | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        path = self._get_pretrained_file(embedding_root, pretrained_file_name)
        self._load_embedding(path, " ", init_unknown_vec, vocabulary=vocabulary)

    @classmethod
    def _archive_of(cls, file):
        collection = file.split(".")[1]
        if collection == "twitter":
            return "glove.twitter.27B.zip"
        return f"glove.{collection}.zip" if collection == "6B" else f"glove.{collection}.300d.zip"


@register
class FastText(_TokenEmbedding):
    """fastText embeddings (Bojanowski et al., Enriching word vectors with subword information,
    2017).

    Parameters
    ----------
    pretrained_file_name : str, default 'wiki.simple.vec'
        One of ``get_pretrained_file_names('fasttext')``; KeyError for any other name,
        FileNotFoundError if the file is missing and ``MXNET_GLUON_REPO`` is not set.
    embedding_root : str, default $MXNET_HOME/embeddings
        The folder that contains the folder 'fasttext' with the file.
    init_unknown_vec : function, default nd.zeros
        Creates the vector for unknown tokens from its shape.
    vocabulary : Vocabulary, optional
        The tokens to keep; by default all of the file.
    **kwargs
        Parameters of `Vocabulary`.

    Examples
    --------
    >>> words = mx.contrib.text.embedding.FastText("wiki.simple.vec")  # doctest: +SKIP
    >>> words.get_vecs_by_tokens("hello").shape  # doctest: +SKIP
    (300,)
    """

    pretrained_file_name_sha1 = FAST_TEXT

    def __init__(
        self,
        pretrained_file_name: str = "wiki.simple.vec",
        embedding_root: str | None = None,
        init_unknown_vec: Callable[..., NDArray] = nd.zeros,
        vocabulary: Vocabulary | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        path = self._get_pretrained_file(embedding_root, pretrained_file_name)
        self._load_embedding(path, " ", init_unknown_vec, vocabulary=vocabulary)


class CustomEmbedding(_TokenEmbedding):
    """An embedding from a user's file.

    Parameters
    ----------
    pretrained_file_path : str
        The file: a token and its numbers in each line. ValueError if it is missing.
    elem_delim : str, default ' '
        The separator between a token and its numbers, and between numbers.
    encoding : str, default 'utf8'
        The file's encoding.
    init_unknown_vec : function, default nd.zeros
        Creates the vector for unknown tokens from its shape.
    vocabulary : Vocabulary, optional
        The tokens to keep; by default all of the file.
    **kwargs
        Parameters of `Vocabulary`.

    Examples
    --------
    >>> import os, tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = os.path.join(folder.name, "words.txt")
    >>> with open(path, "w") as file:
    ...     n = file.write("hello 1 2\\nworld 3 4\\n")
    >>> words = mx.contrib.text.embedding.CustomEmbedding(path)
    >>> words.get_vecs_by_tokens(["world", "moon"]).asnumpy()
    array([[3., 4.],
           [0., 0.]], dtype=float32)
    >>> folder.cleanup()
    """

    def __init__(
        self,
        pretrained_file_path: str,
        elem_delim: str = " ",
        encoding: str = "utf8",
        init_unknown_vec: Callable[..., NDArray] = nd.zeros,
        vocabulary: Vocabulary | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._load_embedding(
            pretrained_file_path, elem_delim, init_unknown_vec, encoding, vocabulary
        )


class CompositeEmbedding(_TokenEmbedding):
    """The concatenated vectors of several embeddings, for the tokens of a vocabulary.

    Parameters
    ----------
    vocabulary : Vocabulary
        The tokens.
    token_embeddings : embedding, or list of embeddings
        The embeddings whose vectors are concatenated.

    Examples
    --------
    >>> import os, tempfile
    >>> text = mx.contrib.text
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "words.txt")
    ...     with open(path, "w") as file:
    ...         n = file.write("hello 1 2\\nworld 3 4\\n")
    ...     words = text.embedding.CustomEmbedding(path)
    >>> vocabulary = text.vocab.Vocabulary(reserved_tokens=["world"])
    >>> text.embedding.CompositeEmbedding(vocabulary, [words, words]).idx_to_vec.asnumpy()
    array([[0., 0., 0., 0.],
           [3., 4., 3., 4.]], dtype=float32)
    """

    def __init__(
        self, vocabulary: Vocabulary, token_embeddings: _TokenEmbedding | list[_TokenEmbedding]
    ) -> None:
        super().__init__()
        embeddings = token_embeddings if isinstance(token_embeddings, list) else [token_embeddings]
        others = [type(e).__name__ for e in embeddings if not isinstance(e, _TokenEmbedding)]
        if others or not embeddings:
            raise MXNetAssertionError(
                f"token_embeddings must be embeddings, not {', '.join(others) or 'none at all'}"
            )
        self._take(embeddings, vocabulary)
