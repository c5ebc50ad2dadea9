"""Checks JSON files against the schemas in docs/schemas: validate.py SCHEMA FILE...

Knows the part of JSON Schema that these schemas use, and refuses any other keyword. A file that ends
in .jsonl holds a value per line, one that ends in .txt a value per line after ":::MLLOG ". Each
schema is first held to its own examples, and each document must fail once any of its keys has
another name: a schema that accepts everything would be no check.
"""
import json
import re
import sys

NOTES = {"$schema", "$defs", "title", "description", "examples"}
TYPES = {
    "object": lambda v: isinstance(v, dict),
    "array": lambda v: isinstance(v, list),
    "string": lambda v: isinstance(v, str),
    "boolean": lambda v: isinstance(v, bool),
    "null": lambda v: v is None,
    "integer": lambda v: isinstance(v, int) and not isinstance(v, bool),
    "number": lambda v: isinstance(v, (int, float)) and not isinstance(v, bool),
}


def faults(value, schema, root, where):
    """What is wrong with a value, a line each."""
    for key, rule in schema.items():
        if key in NOTES or key in ("required", "additionalProperties"):
            continue  # the latter two: below
        if key == "$ref":
            yield from faults(value, root["$defs"][rule.removeprefix("#/$defs/")], root, where)
        elif key == "type":
            names = rule if isinstance(rule, list) else [rule]
            if not any(TYPES[name](value) for name in names):
                yield f"{where}: is not {' or '.join(names)}: {value!r:.60}"
        elif key == "const":
            if value != rule:
                yield f"{where}: is not {rule!r}: {value!r:.60}"
        elif key == "enum":
            if value not in rule:
                yield f"{where}: is none of {rule}: {value!r:.60}"
        elif key == "pattern":
            if isinstance(value, str) and not re.search(rule, value):
                yield f"{where}: does not match {rule}: {value!r:.60}"
        elif key == "minimum":
            if TYPES["number"](value) and value < rule:
                yield f"{where}: is below {rule}: {value}"
        elif key == "items":
            for i, item in enumerate(value if isinstance(value, list) else []):
                yield from faults(item, rule, root, f"{where}[{i}]")
        elif key == "properties":
            for name in value if isinstance(value, dict) else []:
                if name in rule:
                    yield from faults(value[name], rule[name], root, f"{where}.{name}")
        elif key == "oneOf":
            found = [list(faults(value, part, root, where)) for part in rule]
            if sum(not each for each in found) != 1:
                yield min(found, key=len)[0] if all(found) else f"{where}: fits several forms"
        else:
            raise SystemExit(f"validate.py: keyword {key} of a schema is not known")
    if isinstance(value, dict):
        for name in schema.get("required", []):
            if name not in value:
                yield f"{where}: lacks {name}"
        others = schema.get("additionalProperties", True)
        for name in value.keys() - schema.get("properties", {}).keys():
            if others is False:
                yield f"{where}: has an unknown key {name}"
            elif others is not True:
                yield from faults(value[name], others, root, f"{where}.{name}")


def documents(path):
    with open(path, encoding="utf-8") as file:
        if path.endswith((".jsonl", ".txt")):
            return [json.loads(line.removeprefix(":::MLLOG ")) for line in file]
        return [json.load(file)]


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        schema = json.load(file)
    checked = [(f"{sys.argv[1]}: example {i}", value) for i, value in enumerate(schema["examples"])]
    for path in sys.argv[2:]:
        checked += [(f"{path}:{i + 1}", value) for i, value in enumerate(documents(path))]
    wrong = [fault for where, value in checked for fault in faults(value, schema, schema, where)]
    for where, value in checked:
        for name in value:
            renamed = {key + "_" if key == name else key: each for key, each in value.items()}
            if not list(faults(renamed, schema, schema, where)):
                wrong.append(f"{where}: {name} may have another name without a fault")
    print(*wrong[:20], sep="\n", end="\n" if wrong else "")
    if not wrong:
        print(f"{sys.argv[1]}: {len(checked)} values follow the schema")
    return bool(wrong)


sys.exit(main())
