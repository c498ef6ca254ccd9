"""JSON texts of one value, spelled in many ways."""

import json


def escaped(text, r, rate):
    out = []
    for c in text:
        code = ord(c)
        if c in "\"\\" or code < 0x20:
            short = {"\"": "\\\"", "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r", "\b": "\\b", "\f": "\\f"}.get(c)
            out.append(short if short and r.random() < .6 else f"\\u{code:04x}")
        elif c == "/" and r.random() < rate:
            out.append("\\/")
        elif r.random() < rate:
            units = [code] if code < 0x10000 else [0xd800 + ((code - 0x10000) >> 10), 0xdc00 + ((code - 0x10000) & 0x3ff)]
            out.append("".join(f"\\u{u:04x}" if r.random() < .5 else f"\\u{u:04X}" for u in units))
        else:
            out.append(c)
    return "\"" + "".join(out) + "\""


class Spelling:
    """`plain` numbers are written as json.dumps does; else sometimes in another way of equal value."""

    def __init__(self, r, plain_numbers):
        self.r = r
        self.plain = plain_numbers
        self.rate = r.choice([0, 0, .2, 1])
        self.gaps = r.choice([[""], ["", " "], ["", " ", "\n", "\t", "\r\n  ", "    "]])
        self.shuffle = r.random() < .6

    def gap(self):
        return self.r.choice(self.gaps)

    def number(self, value):
        text = json.dumps(value)
        if self.plain or self.r.random() < .4:
            return text
        if isinstance(value, int):
            return self.r.choice([f"{value}.0", f"{value}e0", f"{value * 10}e-1", f"{value}.00", f"{value}E+0"])
        return text + "0" if "e" not in text else text.replace("e", "E")

    def write(self, value):
        if isinstance(value, str):
            return escaped(value, self.r, self.rate)
        if value is None or isinstance(value, bool):
            return json.dumps(value)
        if isinstance(value, (int, float)):
            return self.number(value)
        if isinstance(value, list):
            inner = ",".join(self.gap() + self.write(v) + self.gap() for v in value)
            return "[" + (inner or self.gap()) + "]"
        members = list(value.items())
        if self.shuffle:
            self.r.shuffle(members)
        inner = ",".join(f"{self.gap()}{escaped(n, self.r, self.rate)}{self.gap()}:{self.gap()}{self.write(v)}{self.gap()}"
                         for n, v in members)
        return "{" + (inner or self.gap()) + "}"
