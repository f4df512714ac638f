#!/usr/bin/env python3
"""Checks every shipped configuration, and damages of them, by the JSON schema that `phalanx help schema` prints.

usage: schema.py PHALANX CONFIG.yaml...     (needs the packages jsonschema and PyYAML)
"""
import copy
import json
import subprocess
import sys

import jsonschema
import yaml


def main(phalanx, *paths):
    schema = json.loads(subprocess.run([phalanx, "help", "schema"], check=True, capture_output=True, text=True).stdout)
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    damages = [
        lambda c: c.setdefault("train", {}).update(stepz=3),
        lambda c: c.setdefault("train", {}).update(steps=0),
        lambda c: c.setdefault("train", {}).update(steps="many"),
        lambda c: c.setdefault("optimizer", {}).update(name="adam"),
        lambda c: c.setdefault("memory", {}).update(budget="10 furlongs"),
        lambda c: c.setdefault("run", {}).update(lock="maybe"),
        lambda c: c.setdefault("data", {}).update(train=[{"weight": 1}]),
        lambda c: c.update(trian={}),
    ]
    for path in paths:
        with open(path, encoding="utf-8") as file:
            config = yaml.safe_load(file)
        for error in validator.iter_errors(config):
            sys.exit(f"{path}: {error.json_path}: {error.message}")
        for number, damage in enumerate(damages):
            damaged = copy.deepcopy(config)
            damage(damaged)
            if validator.is_valid(damaged):
                sys.exit(f"{path}: damage {number} passes the schema")
    print(f"{len(paths)} configurations are valid, {len(damages)} damages of each are not")


main(*sys.argv[1:])
