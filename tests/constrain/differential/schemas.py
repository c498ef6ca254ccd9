"""Random JSON Schemas over the keywords that constrained decoding enforces, and instances near them.

Names, texts and numbers come from small pools, so that keywords meet: the same member is limited twice, a pattern covers a named
member, a branch of `oneOf` overlaps another. Everything depends on the seed alone.
"""

import json
import random

NAMES = ["a", "b", "aa", "ab", "ba", "name", "\u00e9", "x\"y", "a b", "0", "", "\U0001f600", "a/b", "~"]
TEXTS = ["", "a", "b", "aa", "ab", "abc", "\u00e9", "e\u0301", "\U0001f600", "\U0001f600a", "a\nb", "\"", "\\", "/", "1", "12",
         "2024-02-29", "2023-02-29", "10.0.0.1", "256.1.1.1", "::1", "foo-bar", "Foo", "a b", " ", "\u2028", "\x7f", "\t"]
NUMBERS = [0, 1, -1, 2, 3, 5, 7, 10, 12, 100, -5, 0.5, 1.5, 2.5, -0.5, 0.1, 1.0, -0.0, 1e2, 12.25, 1e20, 0.25, 99, 1000, 0.01,
           123456789, -12.75]
PATTERNS = ["^a", "b$", "^[ab]*$", "^a?b{1,2}$", "^.$", "^..$", "a|b", "^(a|ab)(c|bcd)?$", "^\\d+$", "^\\w+$", "\\s", "^\\S*$",
            "^(?!a)", "^(?=.*b)[a-c]+$", "^[^a]*$", "^(?:foo|bar|foo-bar)$", "^[A-Z][a-z]*$", "\\bfoo\\b", "^\\u00e9$", "^x_",
            "^(?!.*aa).{0,3}$", "[\\u00e0-\\u00ff]", "^$", "^a{2,}$", "^(ab)+$", "a.b", "^[\\w.-]+$", "^(?:(?:a|b)c?)*$", "^-?\\d{1,3}$",
            "\\.", "^\\/", "[/\\\\]", "^\\W$", "^[^\\s]+$", "(?!b$)^.{1,2}$", "^\\D*$", "^(a)(?=b)b", "^[a-z]+?$", "^a*?b??$"]
FORMATS = ["date", "ipv4", "uuid", "ipv6", "date-time", "time", "json-pointer", "unknown-format"]
FORMAT_TEXTS = ["2024-02-29", "2023-02-29", "2000-02-29", "1900-02-29", "2024-13-01", "10.0.0.1", "010.0.0.1", "1.2.3", "::", "::1",
                "1::2::3", "::ffff:1.2.3.4", "fe80::1%eth0", "12345::", "123e4567-e89b-12d3-a456-426614174000",
                "123e4567e89b12d3a456426614174000", "2024-02-29T12:00:00Z", "2024-02-29t23:59:60z", "2024-02-29T12:00:60Z",
                "2024-02-29 12:00:00Z", "2024-02-29T12:00:00+24:00", "12:00:00Z", "24:00:00Z", "12:00:00.123-05:30", "12:00:00", "/a~1b",
                "a/b", "/~2", "", "1998-12-31T23:59:60.5Z", "23:59:60+00:00", "22:59:60-01:00", "00:29:60+00:30", "2024-2-9", "\u0661.1.1.1"]
TYPES = ["null", "boolean", "integer", "number", "string", "array", "object"]


class SchemaMaker:
    """One random schema document: `make()`."""

    def __init__(self, seed):
        self.r = random.Random(seed)
        self.draft = self.r.choice(["2020-12"] * 5 + ["draft-07"] * 2 + ["2019-09", "draft-04"])
        self.names = self.r.sample(NAMES, 4)
        self.patterns = self.r.sample(PATTERNS, 3)  # few, so that the same one meets different
                                                    # limits
        self.dense = self.r.choice([.15, .15, .5])  # how often a schema gets a combination of other
                                                    # schemas
        self.only = self.r.choice([None] * 6 + ["numeric", "string", "array", "object", "unique"])
        self.defs = self.r.sample(["d0", "d1", "d/2", "d~3"], self.r.randrange(3))
        self.anchored = self.draft[0] == "2" and self.r.random() < .3
        self.by_id = self.r.random() < .3

    def make(self):
        root = self.schema(self.r.choice([2, 3, 3, 4]))
        if not isinstance(root, dict):
            root = {"allOf": [root]}
        head = {"2020-12": "https://json-schema.org/draft/2020-12/schema", "2019-09": "https://json-schema.org/draft/2019-09/schema",
                "draft-07": "http://json-schema.org/draft-07/schema#", "draft-04": "http://json-schema.org/draft-04/schema#"}
        out = {"$schema": head[self.draft], **root}
        if self.draft in ("draft-07", "draft-04") and "$ref" in out:
            out = {"$schema": head[self.draft], "allOf": [root]}
        if self.defs:
            bodies = {}
            for name in self.defs:
                body = self.schema(2)
                bodies[name] = {**self.names_of(name), **(body if isinstance(body, dict) and "$ref" not in body else {"allOf": [body]})}
            out["$defs" if self.draft[0] == "2" else "definitions"] = bodies
            if self.by_id:
                out["$id" if self.draft != "draft-04" else "id"] = "http://here.test/folder/root.json"
        return json.loads(json.dumps(out))

    # Names of a definition apart from its path.
    def names_of(self, name):
        plain = name.replace("/", "").replace("~", "")
        if self.by_id:
            return {"$id" if self.draft != "draft-04" else "id": f"../other/{plain}.json"}
        return {"$anchor": f"an{plain}"} if self.anchored else {}

    def chance(self, p):
        return self.r.random() < p

    def name(self):
        return self.r.choice(self.names)

    def number(self):
        if self.only == "numeric" and self.chance(.4):
            return self.r.choice([self.r.randrange(-10**6, 10**6), round(self.r.uniform(-50, 50), self.r.randrange(6)), 1e-7, 1e16, -1e17,
                                  1e-300, 1e300, 123456.789, 9007199254740993])
        return self.r.choice(NUMBERS)

    def boolean(self):
        return {"not": {}} if self.draft == "draft-04" else self.chance(.5)

    def schema(self, depth):
        if self.only in ("numeric", "string") and (depth <= 0 or self.chance(.3)):
            return self.numeric() if self.only == "numeric" else self.string()
        if depth <= 0:
            return self.r.choice([self.string, self.numeric, self.plain, self.values, self.boolean, self.plain])()
        kind = self.r.choice(["string", "numeric", "array", "array", "object", "object", "object", "mixed", "join", "join", "plain",
                              "values", "ref", "condition"])
        if self.only == "unique":
            kind = self.r.choice(["array", "array", "join", "object"])
        elif self.only and self.chance(.7):
            kind = "join" if self.only in ("numeric", "string") or self.chance(.3) else self.only
        if kind == "ref" and not self.defs:
            kind = "join"
        out = {"string": self.string, "numeric": self.numeric, "plain": self.plain, "values": self.values,
               "array": lambda: self.array(depth), "object": lambda: self.object(depth), "join": lambda: self.join(depth),
               "ref": self.ref, "condition": lambda: self.condition(depth), "mixed": lambda: self.mixed(depth)}[kind]()
        if isinstance(out, dict) and "$ref" not in out and self.chance(self.dense):
            out = {**self.join(depth - 1), **out}
        return out

    def ref(self):
        name = self.r.choice(self.defs)
        plain = name.replace("/", "").replace("~", "")
        if self.by_id and self.chance(.5):
            return {"$ref": self.r.choice(["/", "http://here.test/"]) + f"other/{plain}.json"}
        if self.by_id:
            return {"$ref": "http://here.test/folder/root.json#/" + ("$defs" if self.draft[0] == "2" else "definitions") + "/" +
                            name.replace("~", "~0").replace("/", "~1")}
        if self.anchored and self.chance(.5):
            return {"$ref": f"#an{plain}"}
        if self.draft[0] == "2":
            return {"$ref": "#/$defs/" + name.replace("~", "~0").replace("/", "~1"), **(self.string() if self.chance(.2) else {})}
        return {"$ref": "#/definitions/" + name.replace("~", "~0").replace("/", "~1")}

    def plain(self):
        if self.chance(.3):
            return {"type": self.r.sample(TYPES, self.r.randrange(1, 4))}
        return {"type": self.r.choice(TYPES)} if self.chance(.9) else {}

    def limits(self, of, most=4):
        out, low = {}, self.r.randrange(3)
        if self.chance(.4):
            out["min" + of] = low
        if self.chance(.4):
            out["max" + of] = low + self.r.randrange(most) if self.chance(.9) else self.r.choice([63, 255, 1000, 5000])
        return out

    def string(self):
        out = {"type": "string"} if self.chance(.8) else {}
        out.update(self.limits("Length"))
        if self.chance(.5):
            out["pattern"] = self.r.choice(self.patterns)
        elif self.chance(.15):
            out["format"] = self.r.choice(FORMATS)
        return out

    def numeric(self):
        out = {"type": self.r.choice(["integer", "number"])} if self.chance(.8) else {}
        low = self.number()
        if self.chance(.4):
            out["minimum"] = low
        if self.chance(.4):
            out["maximum"] = low + self.r.choice([0, 1, .5, 10, 100])
        for name in ("exclusiveMinimum", "exclusiveMaximum"):
            if self.draft == "draft-04":
                if self.chance(.3) and name.replace("exclusiveM", "m") in out:
                    out[name] = self.chance(.6)
            elif self.chance(.2):
                out[name] = self.number()
        if self.chance(.5 if self.only == "numeric" else .25):
            out["multipleOf"] = self.r.choice([1, 2, 3, 5, .5, .1, .01, 1.5, 7, 10, 2.0, 1e2, .3, 1e-6, 12, 2.5, .05])
        return out

    def value(self, depth):
        pick = self.r.random()
        if pick < .35:
            return self.r.choice(TEXTS)
        if pick < .65:
            return self.number()
        if pick < .8 or depth <= 0:
            return self.r.choice([None, True, False])
        if pick < .9:
            return [self.value(depth - 1) for _ in range(self.r.randrange(3))]
        return {self.name(): self.value(depth - 1) for _ in range(self.r.randrange(3))}

    def values(self):
        if self.draft == "draft-04" or self.chance(.7):
            out = []
            for _ in range(self.r.randrange(1, 5)):
                value = self.value(2)
                if value not in out:
                    out.append(value)
            return {"enum": out}
        return {"const": self.value(2)}

    def array(self, depth):
        out = {"type": "array"} if self.chance(.85) else {}
        out.update(self.limits("Items"))
        new = self.draft == "2020-12"
        unique = self.chance(.8 if self.only == "unique" else .25)
        if unique:
            out["uniqueItems"] = True
        if self.chance(.7):
            out["items"] = self.few(min(depth, 2)) if unique and self.chance(.6) else self.schema(depth - 1)
        if self.chance(.25):
            prefix = [self.schema(depth - 1) for _ in range(self.r.randrange(1, 4))]
            if new:
                out["prefixItems"] = prefix
            elif "items" in out and self.chance(.7):
                out["additionalItems"] = out["items"]
                out["items"] = prefix
            else:
                out["items"] = prefix
        if self.chance(.25) and self.draft != "draft-04":
            out["contains"] = self.schema(depth - 1)
            if self.draft[0] == "2" and self.chance(.5):
                out["minContains"] = self.r.randrange(3)
            if self.draft[0] == "2" and self.chance(.3):
                out["maxContains"] = self.r.randrange(1, 4)
        # The library misjudges unevaluated* of 2019-09.
        if new and self.chance(.15):
            out["unevaluatedItems"] = self.schema(0) if self.chance(.4) else False
            if self.chance(.5):
                out.update(self.join(depth - 1, {"array"}))
        return out

    # A schema with few values, so that unique items run out.
    def few(self, depth):
        kind = self.r.choice(["enum", "range", "text", "boolean", "list", "object", "join"]) if depth > 0 else "enum"
        if kind == "range":
            low = self.r.choice([-1, 0, 8, 99])
            return {"type": "integer", "minimum": low, "maximum": low + self.r.randrange(4)}
        if kind == "text":
            return {"type": "string", "maxLength": self.r.choice([0, 1, 2]), "pattern": self.r.choice(["^[ab]*$", "^(a|\u00e9)?$", "^a*$"])}
        if kind == "boolean":
            return {"type": self.r.choice(["boolean", "null", ["boolean", "null"]])}
        if kind == "list":
            return {"type": "array", "items": self.few(depth - 1), "maxItems": self.r.choice([1, 2]), "uniqueItems": self.chance(.4)}
        if kind == "object":
            names = self.r.sample(self.names, self.r.randrange(1, 3))
            out = {"type": "object", "properties": {n: self.few(depth - 1) for n in names}, "additionalProperties": False}
            if self.chance(.3):
                out["additionalProperties"] = self.few(0)
                out["maxProperties"] = self.r.randrange(1, 3)
                if self.chance(.5) and self.draft != "draft-04":
                    out["propertyNames"] = {"enum": self.names[:3]}
            if self.chance(.6):
                out["required"] = self.r.sample(names, 1)
            return out
        if kind == "join":
            return {"anyOf": [self.few(depth - 1), self.few(depth - 1)]}
        out = []
        for _ in range(self.r.randrange(1, 4)):
            value = self.value(2)
            if value not in out:
                out.append(value)
        return {"enum": out}

    def object(self, depth):
        out = {"type": "object"} if self.chance(.85) else {}
        out.update(self.limits("Properties"))
        if self.chance(.75):
            out["properties"] = {n: self.schema(depth - 1) for n in self.r.sample(self.names, self.r.randrange(1, 4))}
        if self.chance(.4):
            out["required"] = self.r.sample(self.names, self.r.randrange(1, 3))
        if self.chance(.25):
            out["patternProperties"] = {self.r.choice(self.patterns): self.schema(depth - 1) for _ in range(self.r.randrange(1, 3))}
        if self.chance(.4):
            out["additionalProperties"] = self.schema(0) if self.chance(.5) else False
        if self.chance(.15) and self.draft != "draft-04":
            out["propertyNames"] = self.r.choice([self.string, self.values, lambda: self.join(1, {"string"})])()
        if self.chance(.15):
            if self.draft[0] == "2":
                out["dependentRequired"] = {self.name(): [self.name()]}
            else:
                out["dependencies"] = {self.name(): [self.name()] if self.chance(.5) else self.schema(depth - 1)}
        if self.draft[0] == "2" and self.chance(.12):
            out["dependentSchemas"] = {self.name(): self.schema(depth - 1)}
        if self.draft == "2020-12" and self.chance(.2):
            out["unevaluatedProperties"] = self.schema(0) if self.chance(.4) else False
            if self.chance(.6):
                out.update(self.r.choice([lambda: self.join(depth - 1, {"object"}), lambda: self.condition(depth - 1)])())
        return out

    def part(self, depth, kinds):
        if kinds and self.chance(.7):
            kind = next(iter(kinds))
            return {"array": lambda: self.array(depth - 1), "object": lambda: self.object(depth - 1), "string": self.string}[kind]()
        return self.schema(depth - 1)

    def join(self, depth, kinds=None):
        if kinds is None and self.chance(.4):
            kinds = {self.r.choice(["array", "object", "string"])}
        keyword = self.r.choice(["allOf", "anyOf", "oneOf", "not", "allOf", "anyOf", "oneOf"])
        if keyword == "not":
            return {"not": self.part(depth, kinds)}
        return {keyword: [self.part(depth, kinds) for _ in range(self.r.randrange(1, 4))]}

    def condition(self, depth):
        if self.draft == "draft-04":
            return self.join(depth)
        kinds = {self.r.choice(["array", "object", "string"])} if self.chance(.6) else None
        out = {"if": self.part(depth, kinds)}
        if self.chance(.75):
            out["then"] = self.part(depth, kinds)
        if self.chance(.6):
            out["else"] = self.part(depth, kinds)
        return out

    def mixed(self, depth):
        out = {}
        for part in self.r.sample([self.string, self.numeric, lambda: self.array(depth), lambda: self.object(depth)], 2):
            out.update(part())
        out.pop("type", None)
        if self.chance(.5):
            out["type"] = self.r.sample(TYPES, 2)
        return out


class InstanceMaker:
    """Values that were made with an eye on a schema: many fit, many fail at one place."""

    def __init__(self, schema, seed):
        self.root = schema
        self.r = random.Random(seed)
        self.names = sorted(self.names_of(schema, set())) or ["a"]

    def names_of(self, schema, found):
        if isinstance(schema, dict):
            for key, value in schema.items():
                if key in ("properties", "dependentRequired", "dependentSchemas", "dependencies") and isinstance(value, dict):
                    found.update(value)
                if key == "required" and isinstance(value, list):
                    found.update(value)
                self.names_of(value, found)
        elif isinstance(schema, list):
            for value in schema:
                self.names_of(value, found)
        return found

    def any(self, depth):
        return SchemaMaker(self.r.random()).value(depth)

    def make(self, schema, depth=5):
        if self.r.random() < .06 or not isinstance(schema, dict) or depth <= 0:
            return self.any(2)
        if "$ref" in schema:
            return self.make(self.follow(schema["$ref"]), depth - 1)
        if "const" in schema:
            return schema["const"]
        if schema.get("enum"):
            return self.r.choice(schema["enum"])
        if not set(schema) & {"type", "properties", "items", "prefixItems", "pattern", "required", "minimum"} or self.r.random() < .3:
            for keyword in self.r.sample(["allOf", "anyOf", "oneOf"], 3):
                if keyword in schema:
                    return self.merged(schema, self.r.choice(schema[keyword]), depth)
            for keyword in self.r.sample(["if", "then", "else"], 3):
                if keyword in schema:
                    return self.merged(schema, schema[keyword], depth)
        return self.of_type(schema, depth)

    # A value of one part, with the members that the whole schema names.
    def merged(self, schema, part, depth):
        value = self.make(part, depth - 1)
        if isinstance(value, dict) and set(schema) & {"properties", "required"}:
            other = self.of_type({**schema, "type": "object"}, depth)
            return {**other, **value} if self.r.random() < .5 else {**value, **other}
        return value

    def follow(self, ref):
        if "#/" in ref:
            ref = ref[ref.index("#"):]
            at = self.root
            for token in ref[2:].split("/"):
                at = at[token.replace("~1", "/").replace("~0", "~")]
            return at
        for body in {**self.root.get("$defs", {}), **self.root.get("definitions", {})}.values():
            if isinstance(body, dict):
                own = body.get("$id", body.get("id", "..?"))
                if body.get("$anchor") == ref[1:] or (isinstance(own, str) and ref.endswith(own[2:])):
                    return body
        return {}

    def of_type(self, schema, depth):
        types = schema.get("type")
        if types is None:
            hints = [("object", {"properties", "required", "patternProperties", "minProperties", "dependentSchemas"}),
                     ("array", {"items", "prefixItems", "contains", "minItems"}), ("string", {"pattern", "minLength", "format"}),
                     ("number", {"minimum", "maximum", "multipleOf"})]
            types = [t for t, keys in hints if keys & set(schema)] or TYPES
        kind = self.r.choice(types) if isinstance(types, list) else types
        if kind == "null":
            return None
        if kind == "boolean":
            return self.r.random() < .5
        if kind in ("integer", "number"):
            return self.number(schema, kind)
        if kind == "string":
            return self.r.choice(FORMAT_TEXTS if "format" in schema else TEXTS)
        return self.array(schema, depth) if kind == "array" else self.object(schema, depth)

    def number(self, schema, kind):
        near = [schema[k] for k in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
                if isinstance(schema.get(k), (int, float)) and not isinstance(schema.get(k), bool)]
        value = self.r.choice(near or NUMBERS) + self.r.choice([0, 0, 0, 1, -1, .5, .01, 2])
        value = round(value, 4) if abs(value) < 1e15 else value
        return int(value) if kind == "integer" and self.r.random() < .8 else value

    def array(self, schema, depth):
        least = schema.get("minItems", 0)
        size = self.r.choice([least, least, least + 1, least + 2, max(0, schema.get("maxItems", 2))])
        items = schema.get("items", {})
        prefix = schema.get("prefixItems", items if isinstance(items, list) else [])
        rest = schema.get("additionalItems", {}) if isinstance(items, list) else items
        out = []
        for i in range(min(size, 6)):
            at = prefix[i] if i < len(prefix) else rest
            if "contains" in schema and self.r.random() < .4:
                at = schema["contains"]
            out.append(self.make(at, depth - 1))
        return out

    def object(self, schema, depth):
        known = schema.get("properties", {})
        out = {}
        wanted = list(schema.get("required", []))
        for name in known:
            if self.r.random() < .6:
                wanted.append(name)
        while self.r.random() < .25:
            wanted.append(self.r.choice(self.names + NAMES + TEXTS[:10]))
        self.r.shuffle(wanted)
        for name in wanted:
            other = schema.get("additionalProperties", {})
            if self.r.random() < .3 and schema.get("patternProperties"):
                other = self.r.choice(list(schema["patternProperties"].values()))
            out[name] = self.make(known.get(name, other), depth - 1)
        return out

    # Changes one place.
    def mutated(self, value):
        value = json.loads(json.dumps(value))
        if isinstance(value, dict) and value and self.r.random() < .8:
            name = self.r.choice(list(value))
            what = self.r.random()
            if what < .3:
                del value[name]
            elif what < .5:
                value[self.r.choice(self.names + NAMES)] = value.pop(name)
            elif what < .6:
                value[self.r.choice(self.names + NAMES)] = self.any(1)
            else:
                value[name] = self.mutated(value[name])
            return value
        if isinstance(value, list) and value and self.r.random() < .8:
            at = self.r.randrange(len(value))
            what = self.r.random()
            if what < .25:
                del value[at]
            elif what < .5:
                value.insert(at, self.r.choice([value[at], self.any(1)]))
            else:
                value[at] = self.mutated(value[at])
            return value
        if isinstance(value, str) and self.r.random() < .7:
            return self.r.choice([value + "a", value[:-1], value[1:], value + self.r.choice(TEXTS), value.upper()])
        if isinstance(value, (int, float)) and not isinstance(value, bool) and self.r.random() < .7:
            return self.r.choice([value + 1, value - 1, value * 2, value + .5, -value, float(value)])
        return self.any(2)
