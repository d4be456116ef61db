"""Registries of classes that can be created by name: initializers, metrics, and user classes."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from ._internal.hints import near
from .base import MXNetAssertionError, MXNetValueError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ._internal.types import Alias, Class, Kind, Register

_FAMILIES: dict[type, dict[str, type]] = {}  # base class -> {lower-case name: class}


def _family(base_class):
    return _FAMILIES.setdefault(base_class, {})


def get_registry(base_class: type) -> dict[str, type]:
    """Returns a copy of the names registered for `base_class`: lower-case name to class."""
    return dict(_family(base_class))


def get_register_func(base_class: type, nickname: str) -> Register:
    """Returns the decorator `register(klass, name=None)` of a family.

    A second class with the same name replaces the first, with a warning.

    Examples
    --------
    >>> class Shape:
    ...     pass
    >>> register = mx.registry.get_register_func(Shape, "shape")
    >>> create = mx.registry.get_create_func(Shape, "shape")
    >>> @register
    ... class Circle(Shape):
    ...     pass
    >>> type(create("circle")).__name__
    'Circle'
    """
    family = _family(base_class)

    def register(klass: Class, name: str | None = None) -> Class:
        if not (isinstance(klass, type) and issubclass(klass, base_class)):
            raise MXNetAssertionError(
                f"only subclasses of {base_class.__name__} can be registered as {nickname}, got "
                f"{klass!r}"
            )
        key = (klass.__name__ if name is None else name).lower()
        former = family.get(key)
        if former is not None and former is not klass:
            warnings.warn(
                f"{nickname} {key!r}: {klass.__module__}.{klass.__name__} replaces "
                f"{former.__module__}.{former.__name__}",
                UserWarning,
                stacklevel=2,
            )
        family[key] = klass
        return klass

    register.__doc__ = (
        f"Registers a class as {nickname} under its lower-case name, or under `name`."
    )
    return register


def get_alias_func(base_class: type, nickname: str) -> Alias:
    """Returns the decorator `alias(*names)`, which registers a class under additional names."""
    register = get_register_func(base_class, nickname)

    def alias(*names: str) -> Callable[[Class], Class]:
        """Registers a class under additional names; a class decorator."""

        def decorate(klass):
            for name in names:
                register(klass, name)
            return klass

        return decorate

    return alias


def get_create_func(base_class: type[Kind], nickname: str) -> Callable[..., Kind]:
    """Returns the function `create(what, *args, **kwargs)` of a family.

    `what` is an instance (returned unchanged), a registered name, a dict with the name under
    `nickname`, or the JSON text of ``[name, kwargs]`` or of such a dict.
    """
    family = _family(base_class)

    def create(*args: Any, **kwargs: Any) -> Kind:
        if args:
            what, args = args[0], args[1:]
        elif nickname in kwargs:
            what = kwargs.pop(nickname)
        else:
            raise TypeError(f"create() needs the name of a {nickname}")
        if isinstance(what, base_class):
            if args or kwargs:
                raise MXNetAssertionError(
                    f"{what!r} is already a {nickname}; pass no further arguments"
                )
            return what
        if isinstance(what, dict):
            return create(**what)
        if not isinstance(what, str):
            raise MXNetAssertionError(
                f"create: the {nickname} must be a name or an instance, got {type(what).__name__}"
            )
        if what[:1] in ("[", "{"):
            import json

            if args or kwargs:
                raise MXNetAssertionError(
                    f"a {nickname} is given as JSON; pass no further arguments"
                )
            try:
                parsed = json.loads(what)
                name, options = parsed if isinstance(parsed, list) else (None, parsed)
            except (ValueError, RecursionError) as error:
                raise MXNetValueError(
                    f"create: {what[:40]!r} is not the JSON of an object ({nickname}): {error}"
                ) from None
            return create(**options) if name is None else create(name, **options)
        klass = family.get(what.lower())
        if klass is None:
            raise MXNetAssertionError(
                f"unknown {nickname} {what!r}{near(what, family)}; registered: "
                f"{', '.join(sorted(family)) or 'none'}"
            )
        return klass(*args, **kwargs)

    create.__doc__ = (
        f"Makes a {nickname} from its name (with arguments for its constructor), JSON text, a "
        "dict, or an instance."
    )
    return create
