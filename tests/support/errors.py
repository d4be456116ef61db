"""Errors that calls must raise, one per line."""

import pytest


def raises(error, text, call):
    """Asserts that a call raises an error of this type whose text matches a pattern."""
    with pytest.raises(error, match=text):
        call()


def text_of(error, call):
    """Returns the text of the error of this type that a call must raise."""
    with pytest.raises(error) as caught:
        call()
    return str(caught.value)
