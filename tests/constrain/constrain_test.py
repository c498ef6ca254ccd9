"""`aisp constrain` over whole folders, and its random texts before an independent validator.

Usage: constrain_test.py AISP SOURCE_DIR SHARED_DIR suite|real|samples. Exit code 77: the data is not here.
"""

import json
import os
import subprocess
import sys

AISP, SOURCE, SHARED, WHAT = sys.argv[1:5]
SCHEMAS = os.path.join(SHARED, "schemas")
SUITE = os.path.join(SOURCE, "tools", "constrain_suite.py")

# Our own schemas: generated texts must validate. Formats are checked separately, because the
# library decides about them.
OWN = [
    {"type": "object", "properties": {"a": {"type": "integer", "minimum": -5, "maximum": 1200},
                                      "b": {"type": "string", "minLength": 2, "maxLength": 9}}, "required": ["a", "b"],
     "additionalProperties": False},
    {"type": "array", "items": {"enum": ["x", "y", 1, None]}, "minItems": 2, "maxItems": 4},
    # Bounded: the validator divides in floating point.
    {"type": "number", "minimum": -9000, "maximum": 9000, "oneOf": [{"multipleOf": 3}, {"multipleOf": 5}]},
    {"type": "object", "patternProperties": {"^a": {"type": "boolean"}}, "minProperties": 1, "maxProperties": 3,
     "additionalProperties": {"type": "null"}},
    {"type": "object", "properties": {"k": {"enum": ["n", "s"]}, "v": {}}, "required": ["k", "v"],
     "if": {"properties": {"k": {"const": "n"}}}, "then": {"properties": {"v": {"type": "number"}}},
     "else": {"properties": {"v": {"type": "string"}}}, "additionalProperties": False},
    {"type": "array", "contains": {"type": "integer"}, "minContains": 1, "maxContains": 2,
     "items": {"type": ["integer", "boolean"]}, "maxItems": 6},
    {"$defs": {"t": {"type": "object", "properties": {"v": {"type": "integer"}, "c": {
        "type": "array", "items": {"$ref": "#/$defs/t"}, "maxItems": 2}}, "required": ["v"],
        "additionalProperties": False}}, "$ref": "#/$defs/t"},
    {"type": "string", "pattern": "^(?!no)[a-z]+(-[a-z]+)?$", "maxLength": 12},
    {"type": "array", "items": {"type": "string", "pattern": "^[ab]{0,2}$"}, "uniqueItems": True},
    {"not": {"anyOf": [{"type": "string"}, {"type": "object", "required": ["a"]}]}},
    {"type": "object", "allOf": [{"properties": {"a": {"type": "string"}}}, {"anyOf": [
        {"required": ["a"]}, {"required": ["b"]}]}], "unevaluatedProperties": False,
     "properties": {"b": {"type": "number", "exclusiveMinimum": 0}}},
    {"type": "object", "dependentRequired": {"a": ["b"]}, "propertyNames": {"enum": ["a", "b", "c"]}},
]


def suite(folder, least):
    path = os.path.join(SCHEMAS, folder)
    if not os.path.isdir(path):
        print(f"skipped: {path} is not here")
        return 77
    return subprocess.run([sys.executable, SUITE, path, "--aisp", AISP, "--min-enforced", str(least)],
                          check=False).returncode


def samples():
    try:
        import jsonschema
    except ImportError:
        print("skipped: the Python package jsonschema is not installed")
        return 77
    schemas = list(OWN)
    lines = "".join(json.dumps({"schema": s, "instances": []}) + "\n" for s in schemas)
    done = subprocess.run([AISP, "constrain", "--cases", "-", "--sample", "100"], input=lines.encode(),
                          stdout=subprocess.PIPE, check=True)
    whole = bad = 0
    for schema, line in zip(schemas, done.stdout.decode().splitlines(), strict=True):
        verdict = json.loads(line)
        assert verdict["status"] == "enforced", (schema, verdict)
        validator = jsonschema.Draft202012Validator(schema)
        for sample in verdict["samples"]:
            assert "dead_end" not in sample, (schema, sample)
            if not sample["whole"]:
                continue
            whole += 1
            if not validator.is_valid(json.loads(sample["text"])):
                bad += 1
                print("INVALID", json.dumps(schema), sample["text"])
    print(f"{whole} whole texts under {len(schemas)} schemas, {bad} invalid")
    return 1 if bad or whole < 500 else 0


sys.exit({"suite": lambda: suite("json-schema-test-suite", 86), "real": lambda: suite("real", 99),
          "samples": samples}[WHAT]())
