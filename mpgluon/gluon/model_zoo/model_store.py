"""Files of trained parameters.

Nothing is downloaded here: the files are found where MXNet keeps them, ``$MXNET_HOME/models``
(``~/.mxnet/models``), under MXNet's names.
"""

from __future__ import annotations

import os

from ..utils import check_sha1

__all__ = ["get_model_file", "purge"]

# SHA-1 of the files that MXNet published.
_SHA1 = {
    "resnet18_v1": "a0666292f0a30ff61f857b0b66efc0228eb6a54b",
    "resnet34_v1": "48216ba99a8b1005d75c0f3a0c422301a0473233",
    "resnet50_v1": "0aee57f96768c0a2d5b23a6ec91eb08dfb0a45ce",
    "resnet101_v1": "d988c13d6159779e907140a638c56f229634cb02",
    "resnet152_v1": "671c637a14387ab9e2654eafd0d493d86b1c8579",
    "resnet18_v2": "a81db45fd7b7a2d12ab97cd88ef0a5ac48b8f657",
    "resnet34_v2": "9d6b80bbc35169de6b6edecffdd6047c56fdd322",
    "resnet50_v2": "ecdde35339c1aadbec4f547857078e734a76fb49",
    "resnet101_v2": "18e93e4f48947e002547f50eabbcc9c83e516aa6",
    "resnet152_v2": "f2695542de38cf7e71ed58f02893d82bb409415e",
}


def _root(root):
    if root is None:
        root = os.path.join(os.environ.get("MXNET_HOME", os.path.join("~", ".mxnet")), "models")
    return os.path.expanduser(root)


def get_model_file(name: str, root: str | None = None) -> str:
    """The path of a model's file of trained parameters.

    Parameters
    ----------
    name : str
        Name of the model, as 'resnet18_v1'.
    root : str, default $MXNET_HOME/models
        Where the files are.

    Returns
    -------
    str

    Raises
    ------
    ValueError
        When there are no trained parameters for such a model, or the file's contents are not what
        MXNet published.
    FileNotFoundError
        When the file is not there.
    """
    if name not in _SHA1:
        raise ValueError(
            f"there are no trained parameters for {name!r}; there are for "
            f"{', '.join(sorted(_SHA1))}"
        )
    path = os.path.join(_root(root), f"{name}-{_SHA1[name][:8]}.params")
    if not os.path.exists(path):
        raise FileNotFoundError(
            f"the trained parameters of {name} are not at {path}; put MXNet's file there, name its "
            "folder with `root`, or leave out pretrained=True and load a file of your own with "
            "net.load_parameters"
        )
    if not check_sha1(path, _SHA1[name]):
        raise ValueError(
            f"{path} is not the file that MXNet published for {name} (SHA-1 {_SHA1[name]}): it is "
            "damaged or another one; load a file of your own with net.load_parameters"
        )
    return path


def purge(root: str | None = None) -> None:
    """Removes all parameter files from the folder `root`, by default ``$MXNET_HOME/models``."""
    root = _root(root)
    for file in os.listdir(root):
        if file.endswith(".params"):
            os.remove(os.path.join(root, file))
