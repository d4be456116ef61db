"""Tokenizers of Hugging Face folders, by the packages tokenizers and jinja2."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ...._internal.hints import TOKENIZER, absent, present
from ....base import MXNetError, MXNetTypeError, MXNetValueError
from ..._huggingface.files import read_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Never

__all__ = ["Tokenizer", "tokenizer"]


def tokenizer(folder: str | os.PathLike[str]) -> Tokenizer:
    """Reads the tokenizer of a model: `tokenizer.json`, and `tokenizer_config.json` if it exists.

    Needs the package tokenizers, and jinja2 for chat templates: ``pip install mpgluon[text]``.

    Parameters
    ----------
    folder : path
        The folder of the model.

    Returns
    -------
    Tokenizer

    Raises
    ------
    ImportError
        If a package is missing.
    ValueError
        If the folder has no `tokenizer.json`.
    MXNetError
        If a file is damaged. The message names it.
    """
    return Tokenizer(folder)


def _missing(package: str, use: str) -> ImportError:
    return ImportError(f"{use} need the package {package}; run: pip install mpgluon[text]")


class ChatPrompt(str):
    """Messages that `Tokenizer.chat` has formatted. They contain their special tokens, so `encode`
    and `generate` add none. Appending a string keeps this property."""

    def __add__(self, text: str) -> ChatPrompt:
        return ChatPrompt(str(self) + text)


class Tokenizer:
    """Converts text to tokens and back. Returned by `tokenizer`.

    Attributes
    ----------
    stop : list of int
        The tokens that end a text.
    template : str or None
        The chat template.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            import tokenizers
        except ImportError as error:
            raise _missing("tokenizers", "tokenizers") from error
        path = os.path.join(folder, "tokenizer.json")
        if not os.path.exists(path):
            raise MXNetValueError(
                f"tokenizer: {os.fspath(folder)!r} has no tokenizer.json; save the tokenizer with "
                "transformers (AutoTokenizer.from_pretrained(...).save_pretrained(folder))"
            )
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(path)
        except Exception as error:  # the package raises no other class
            raise MXNetError(f"tokenizer: file '{path}' is damaged: {error}") from error
        self._config = _read(folder, "tokenizer_config.json")
        self.template: str | None = _template(self._config.get("chat_template"))
        template = os.path.join(folder, "chat_template.jinja")
        if self.template is None and os.path.exists(template):
            with open(template, encoding="utf-8") as file:
                self.template = file.read()
        self.stop: list[int] = self._stop(_read(folder, "generation_config.json"))

    def _stop(self, generation):
        found = generation.get("eos_token_id")
        if found is None:
            token = _text(self._config.get("eos_token"))
            found = None if token is None else self._tokenizer.token_to_id(token)
        if found is None:
            return []
        return found if isinstance(found, list) else [found]

    def __call__(self, *given: Any, **options: Any) -> Never:
        """Raises an error that names `encode`."""
        raise MXNetTypeError(
            "Tokenizer: a tokenizer cannot be called; use tokenizer.encode(text), which returns a "
            "list of tokens"
        )

    def __dir__(self) -> list[str]:
        return present(self, super().__dir__())

    def encode(self, text: str, special: bool | None = None) -> list[int]:
        """Returns the tokens of a text, with the tokens that begin or end a text if `special`. By
        default, they are added to all texts except the results of `chat`, which have them."""
        if special is None:
            special = not isinstance(text, ChatPrompt)
        return list(self._tokenizer.encode(text, add_special_tokens=special).ids)

    def decode(self, tokens: Sequence[int], special: bool = False) -> str:
        """Returns the text of tokens, with special tokens if `special`."""
        return self._tokenizer.decode(list(tokens), skip_special_tokens=not special)

    def chat(self, messages: list[dict[str, Any]], reply: bool = True, **values: Any) -> ChatPrompt:
        """Formats messages by the chat template of the model.

        Parameters
        ----------
        messages : list of dict
            As in ``[{"role": "user", "content": "Hello"}]``.
        reply : bool, default True
            Whether the beginning of a reply is added. The name ``add_generation_prompt`` of
            transformers is also valid.
        values
            Further variables of the template.

        Returns
        -------
        str
            A prompt that contains its special tokens. `encode` and `generate` don't add them, also
            if a string is appended to the prompt.
        """
        if not isinstance(messages, (list, tuple)) or not all(
            isinstance(one, Mapping) for one in messages
        ):
            raise MXNetTypeError(
                "chat: messages must be a list of dicts, such as [{'role': 'user', 'content': "
                f"'Hello'}}], not {messages!r:.60}"
            )
        reply = values.pop("add_generation_prompt", reply)
        if self.template is None:
            raise MXNetValueError(
                "chat: the folder of the tokenizer has no chat template; format the messages "
                "yourself"
            )
        try:
            from jinja2.exceptions import TemplateError
            from jinja2.sandbox import ImmutableSandboxedEnvironment
        except ImportError as error:
            raise _missing("jinja2", "chat templates") from error

        def refuse(message):
            raise TemplateError(message)

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.globals["raise_exception"] = refuse
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        environment.filters["tojson"] = _as_json
        names = {key: _text(value) for key, value in self._config.items() if key.endswith("_token")}
        template = environment.from_string(self.template)
        return ChatPrompt(
            template.render(messages=messages, add_generation_prompt=reply, **{**names, **values})
        )


absent(Tokenizer, TOKENIZER)


def _read(folder, name):
    path = os.path.join(folder, name)
    return read_json(path, "tokenizer: file") if os.path.exists(path) else {}


def _as_json(value, ensure_ascii=False, **options):
    """The filter `tojson` of transformers, which does not escape characters of HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _text(token):
    """Returns the text of a special token, which configs store as a string or a dict."""
    return token.get("content") if isinstance(token, dict) else token


def _template(given):
    """Returns the chat template, which configs store as a string or as a list of named ones."""
    if isinstance(given, list):
        named = {one["name"]: one["template"] for one in given}
        return named.get("default")
    return given


def encoded(given: Any, text: str) -> list[int]:
    """Encodes text by a `Tokenizer`, or one of tokenizers or transformers."""
    if isinstance(text, ChatPrompt) and not isinstance(given, Tokenizer):
        found = given.encode(text, add_special_tokens=False)
    else:
        found = given.encode(text)
    return list(getattr(found, "ids", found))


def decoder_of(given: Any) -> Any:
    """Returns the function that decodes tokens without special ones."""
    if isinstance(given, Tokenizer):
        return given.decode
    return lambda tokens: given.decode(tokens, skip_special_tokens=True)
