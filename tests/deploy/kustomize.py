"""The few things of kustomize that deploy/ uses, so that its variants can be checked where there is no kubectl: resources,
components, images, configMapGenerator of files, and patches (strategic merges and JSON patches, by target). What it does not
know is an error."""

import copy
import os
import re

import yaml

KNOWN = {"apiVersion", "kind", "namespace", "resources", "components", "images", "patches", "configMapGenerator",
         "generatorOptions"}
MERGE_KEYS = {"containers": "name", "initContainers": "name", "volumes": "name", "volumeMounts": "mountPath", "env": "name",
              "ports": "containerPort"}


def documents(text):
    return [document for document in yaml.safe_load_all(text) if document is not None]


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def build(folder):
    """The manifests that a folder with a kustomization.yaml stands for."""
    return _build(os.path.abspath(folder), [])


def _build(folder, objects):
    kustomization = yaml.safe_load(read(os.path.join(folder, "kustomization.yaml")))
    unknown = set(kustomization) - KNOWN
    if unknown:
        raise ValueError(f"{folder}: this resolver does not know {sorted(unknown)}")
    objects = list(objects)
    for resource in kustomization.get("resources", []):
        path = os.path.normpath(os.path.join(folder, resource))
        if os.path.isdir(path):
            objects += _build(path, [])
        elif not path.startswith(folder + os.sep):
            raise ValueError(f"{folder}: {resource} lies outside, which kustomize refuses")
        else:
            objects += documents(read(path))
    objects += [_config_map(folder, generator, kustomization) for generator in kustomization.get("configMapGenerator", [])]
    for component in kustomization.get("components", []):
        objects = _build(os.path.normpath(os.path.join(folder, component)), objects)
    for patch in kustomization.get("patches", []):
        _patch(folder, patch, objects)
    for image in kustomization.get("images", []):
        _set_image(objects, image)
    for thing in objects:
        if "namespace" in kustomization and thing["kind"] != "Namespace":
            thing["metadata"]["namespace"] = kustomization["namespace"]
    return objects


def _config_map(folder, generator, kustomization):
    if not kustomization.get("generatorOptions", {}).get("disableNameSuffixHash"):
        raise ValueError(f"{folder}: names with a hash are not wanted here")
    metadata = {"name": generator["name"]}
    if "namespace" in generator:
        metadata["namespace"] = generator["namespace"]
    metadata["labels"] = dict(kustomization["generatorOptions"].get("labels", {}))
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata,
            "data": {os.path.basename(path): read(os.path.join(folder, path)) for path in generator["files"]}}


def _patch(folder, patch, objects):
    body = yaml.safe_load(patch["patch"] if "patch" in patch else read(os.path.join(folder, patch["path"])))
    target = patch.get("target") or {"kind": body["kind"], "name": body["metadata"]["name"]}
    found = [thing for thing in objects if re.fullmatch(target.get("kind", ".*"), thing["kind"])
             and re.fullmatch(target.get("name", ".*"), thing["metadata"]["name"])]
    if not found:
        raise ValueError(f"{folder}: a patch for {target} finds nothing")
    for thing in found:
        if isinstance(body, list):
            for operation in body:
                _apply(thing, operation)
        else:
            merged = {key: value for key, value in body.items() if key not in ("apiVersion", "kind", "metadata")}
            _merge(thing, merged)


def _apply(thing, operation):
    *way, last = operation["path"].strip("/").split("/")
    for step in way:
        thing = thing[int(step)] if isinstance(thing, list) else thing[step]
    value = copy.deepcopy(operation.get("value"))
    if operation["op"] == "add" and isinstance(thing, list):
        thing.insert(len(thing) if last == "-" else int(last), value)
    elif operation["op"] in ("add", "replace") and isinstance(thing, dict):
        thing[last] = value
    elif operation["op"] == "replace":
        thing[int(last)] = value
    else:
        raise ValueError(f"this resolver does not know {operation}")


def _merge(target, patch):
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, dict) and isinstance(target.get(key), dict):
            _merge(target[key], value)
        elif isinstance(value, list) and isinstance(target.get(key), list) and key in MERGE_KEYS:
            _merge_list(target[key], value, MERGE_KEYS[key])
        else:
            target[key] = copy.deepcopy(value)


def _merge_list(target, patch, by):
    for item in reversed(patch):
        same = [other for other in target if other.get(by) == item[by]]
        if same:
            _merge(same[0], item)
        else:
            target.insert(0, copy.deepcopy(item))  # as kustomize does: new items come first


def _set_image(thing, image):
    if isinstance(thing, list):
        for item in thing:
            _set_image(item, image)
    elif isinstance(thing, dict):
        for key, value in thing.items():
            if key == "image" and isinstance(value, str) and value.rsplit(":", 1)[0] == image["name"]:
                thing[key] = f"{image.get('newName', image['name'])}:{image['newTag']}"
            else:
                _set_image(value, image)
