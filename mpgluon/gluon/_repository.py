"""Location of the repository for model and data set files."""

from __future__ import annotations

import os

from ..base import MXNetError


def repository_url() -> str:
    """Returns ``MXNET_GLUON_REPO``, an address or a folder, with a trailing slash.

    Raises MXNetError if it is not set, because it has no default."""
    url = os.environ.get("MXNET_GLUON_REPO")
    if not url:
        raise MXNetError(
            "downloads are disabled by default; set the environment variable MXNET_GLUON_REPO "
            "to the address or folder of your model and data set files"
        )
    return url if url.endswith("/") else f"{url}/"


def repository_file_url(namespace: str, filename: str) -> str:
    """Returns the address of a file in the repository's folder `namespace`."""
    return f"{repository_url()}{namespace}/{filename}"
