"""PyPI's jsonschema with what it takes from Python put right: ECMA-262 patterns, exact decimals, the formats of RFCs.

Imports fail with ImportError where the package is not installed.
"""

import datetime
import ipaddress
import json
import re
from decimal import Decimal
from fractions import Fraction

import jsonschema
from jsonschema import _keywords, _utils

SPACE = "\\t-\\r \\u00a0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000\\ufeff"
CLASSES = {"d": "0-9", "w": "A-Za-z0-9_", "s": SPACE}


def to_python(pattern):
    """An ECMA-262 pattern of the kind that the tests use, for Python's `re`."""
    out, at, inside = [], 0, False
    while at < len(pattern):
        c = pattern[at]
        if c == "\\":
            letter = pattern[at + 1]
            at += 2
            if letter in CLASSES:
                out.append(CLASSES[letter] if inside else f"[{CLASSES[letter]}]")
            elif letter.lower() in CLASSES and not inside:
                out.append(f"[^{CLASSES[letter.lower()]}]")
            elif letter in "bB" and not inside:
                out.append(f"(?a:\\{letter})")
            elif letter == "/":
                out.append("/")
            else:
                out.append("\\" + letter)
            continue
        if inside:
            inside = c != "]"
        elif c == "[":
            inside = True
        out.append({"$": "\\Z", ".": "[^\\n\\r\\u2028\\u2029]"}.get(c, c) if not inside and c != "]" else c)
        at += 1
    return "".join(out)


class Ecma:
    """Stands for the module `re` inside the library."""

    def __init__(self):
        self.known = {}

    def search(self, pattern, text):
        if pattern not in self.known:
            self.known[pattern] = re.compile(to_python(pattern))
        return self.known[pattern].search(text)


_keywords.re = _utils.re = Ecma()


def multiple_of(validator, factor, instance, _schema):
    if validator.is_type(instance, "number") and (Fraction(instance) / Fraction(factor)).denominator != 1:
        yield jsonschema.ValidationError("not a multiple")


# Uses a total order: the library's sort compares only neighbours.
def unique_items(validator, wanted, instance, _schema):
    if wanted and validator.is_type(instance, "array"):
        for i, one in enumerate(instance):
            if any(_utils.equal(one, other) for other in instance[:i]):
                yield jsonschema.ValidationError("not unique")


# The library applies `false` to every item here, whatever the schema says.
def unevaluated_items(validator, schema, instance, parent):
    if validator.is_type(instance, "array"):
        seen = _utils.find_evaluated_item_indexes_by_schema(validator, instance, parent)
        for index, item in enumerate(instance):
            if index not in seen:
                yield from validator.descend(item, schema)


def is_date(text):
    if not re.fullmatch("[0-9]{4}-[0-9]{2}-[0-9]{2}", text):
        return False
    try:
        datetime.date(max(int(text[:4]), 0) or 400, int(text[5:7]), int(text[8:]))
    except ValueError:
        return False
    return True


def is_time(text):
    found = re.fullmatch("([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\\.[0-9]+)?(?:[zZ]|([+-])([0-9]{2}):([0-9]{2}))", text)
    if not found:
        return False
    hour, minute, second = (int(found[i]) for i in (1, 2, 3))
    off_hour, off_minute = int(found[5] or 0), int(found[6] or 0)
    if hour > 23 or minute > 59 or second > 60 or off_hour > 23 or off_minute > 59:
        return False
    offset = (off_hour * 60 + off_minute) * (-1 if found[4] == "-" else 1)
    return second < 60 or (hour * 60 + minute - offset) % 1440 == 1439


def is_address(version):
    def check(text):
        if "%" in text or not text.isascii():
            return False
        try:
            return ipaddress.ip_address(text).version == version
        except ValueError:
            return False

    return check


FORMATS = jsonschema.FormatChecker(formats=())
for _name, _check in {
        "date": is_date, "time": is_time, "date-time": lambda t: len(t) > 11 and t[10] in "tT" and is_date(t[:10]) and is_time(t[11:]),
        "ipv4": is_address(4), "ipv6": is_address(6),
        "uuid": lambda t: re.fullmatch("[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", t) is not None,
        "json-pointer": lambda t: re.fullmatch("(?:/(?:[^/~]|~[01])*)*", t, re.DOTALL) is not None}.items():
    FORMATS.checks(_name)(lambda value, check=_check: not isinstance(value, str) or check(value))


def is_number(_checker, value):
    return isinstance(value, (int, Decimal)) and not isinstance(value, bool)


def is_integer(_checker, value):
    return is_number(_checker, value) and value == int(value)


def adjusted(base):
    whole = base.TYPE_CHECKER.redefine("number", is_number)
    if base is not jsonschema.Draft4Validator:
        whole = whole.redefine("integer", is_integer)
    keywords = {"multipleOf": multiple_of, "uniqueItems": unique_items}
    # No longer part of these drafts, but still read as before, as an option of the standard's own
    # tests.
    if base in (jsonschema.Draft201909Validator, jsonschema.Draft202012Validator):
        keywords["dependencies"] = jsonschema.Draft7Validator.VALIDATORS["dependencies"]
    if "unevaluatedItems" in base.VALIDATORS and base is jsonschema.Draft202012Validator:
        keywords["unevaluatedItems"] = unevaluated_items
    return jsonschema.validators.extend(base, keywords, type_checker=whole)


DRAFTS = {"2020-12": adjusted(jsonschema.Draft202012Validator), "2019-09": adjusted(jsonschema.Draft201909Validator),
          "draft-07": adjusted(jsonschema.Draft7Validator), "draft-04": adjusted(jsonschema.Draft4Validator)}


class Oracle:
    def __init__(self, schema, formats=True):
        dialect = schema.get("$schema", "2020-12") if isinstance(schema, dict) else "2020-12"
        name = next((d for d in DRAFTS if d in dialect), "2020-12")
        exact = json.loads(json.dumps(schema), parse_float=Decimal)
        self.validator = DRAFTS[name](exact, format_checker=FORMATS if formats else None)

    def valid(self, text):
        """Whether the JSON text is an instance."""
        return self.validator.is_valid(json.loads(text, parse_float=Decimal))
