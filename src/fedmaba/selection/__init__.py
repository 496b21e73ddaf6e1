"""Whom a server asks: rules that see numbers and name clients, found by name. No torch."""

from __future__ import annotations

import dataclasses

from fedmaba import user_code
from fedmaba.errors import InputError, unknown
from fedmaba.selection.bandit import Bandit as Bandit
from fedmaba.selection.base import Present as Present
from fedmaba.selection.base import Selection as Selection
from fedmaba.selection.by_size import BySize as BySize
from fedmaba.selection.fair import Fair as Fair
from fedmaba.selection.power_of_choice import PowerOfChoice as PowerOfChoice
from fedmaba.selection.uniform import Uniform as Uniform
from fedmaba.strategies import hyper_parameters

REGISTRY: dict[str, type[Selection]] = {
    kind.name: kind for kind in (Uniform, BySize, PowerOfChoice, Bandit, Fair)
}


def parse(spec: str) -> Selection:
    """`name:key=value,...` as a selection: a name of the registry, or package.module.Class."""
    name, _, rest = spec.partition(":")
    if name not in REGISTRY and "." not in name:
        raise unknown("selection", name, REGISTRY, other=", or write package.module.Class")
    kind = REGISTRY[name] if name in REGISTRY else _import_class(name)
    types, values = hyper_parameters.field_types(kind), dict[str, object]()
    fields = [f.name for f in dataclasses.fields(kind)]
    for item in hyper_parameters.split_at_commas(rest):
        key, equals, text = (part.strip() for part in item.partition("="))
        if not equals or key not in fields or key in values:
            known = " or ".join(f"{key}=..." for key in fields) or name
            raise InputError(f"{spec!r}: {item!r}: write {known}")
        try:
            values[key] = hyper_parameters.parse_value(types[key], text)
        except ValueError as rule:
            raise InputError(f"{spec!r}: {key}={text!r}: {rule}") from None
    try:
        return kind(**values)
    except InputError:
        raise
    except Exception as error:  # user code can raise anything
        raise user_code.error_in_user_code(f"selection {name!r}", error) from error


def _import_class(path: str) -> type[Selection]:
    """The class at `package.module.Class`."""
    where, _, attribute = path.rpartition(".")
    what = f"selection {path!r}"
    kind = user_code.import_attribute(what, where, attribute, "package.module.Class")
    if not (isinstance(kind, type) and issubclass(kind, Selection)):
        raise InputError(f"{what} is no class derived from fedmaba.Selection")
    if not isinstance(getattr(kind, "name", None), str) or kind.choose is Selection.choose:
        raise InputError(f"{what} lacks a name or choose(): see docs/who-takes-part.md")
    return kind
