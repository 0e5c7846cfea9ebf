#!/usr/bin/env python3
"""Validates what the injector makes of pods, and the examples, against the schemas of Kubernetes 1.28 to 1.37.

usage: crates/injector/tests/schemas.py [FILE...]

Needs the package kubernetes-validate (with PyYAML), and no network. Without files: the last part of each file in
tests/mutating, as `cargo test -p ration-injector --test reviews` holds the injector to it, and all manifests of examples/. With
files: all manifests in those, which may be YAML or JSON; a List is looked into.

Fields that a version does not know are errors too, so a pod with an image for a volume, or with the name of a claim's
template, is looked at from 1.31 on, where there are such.
"""

import pathlib
import sys

import kubernetes_validate
import yaml

VERSIONS = [f"1.{minor}" for minor in range(28, 38)]
TESTS = pathlib.Path(__file__).resolve().parent
EXAMPLES = TESTS.parent.parent.parent / "examples"


def manifests(path, only_last):
    documents = [one for one in yaml.safe_load_all(path.read_text()) if isinstance(one, dict)]
    if only_last:
        documents = documents[-1:]
    for document in documents:
        if document.get("kind", "").endswith("List") and isinstance(document.get("items"), list):
            yield from document["items"]
        elif "kind" in document:
            yield document


def since(manifest):
    """The first version that has all that is in the manifest."""
    pod = manifest.get("spec") or {}
    pod = (pod.get("template") or {}).get("spec") or pod
    image = any("image" in volume for volume in pod.get("volumes") or [])
    claim = any("resourceClaimTemplateName" in claim for claim in pod.get("resourceClaims") or [])
    return 31 if image or claim else 28


def main(arguments):
    if arguments:
        found = [(pathlib.Path(one), manifest) for one in arguments for manifest in manifests(pathlib.Path(one), False)]
    else:
        mutated = sorted((TESTS / "mutating").glob("*.yaml"))
        found = [(path, manifest) for path in mutated for manifest in manifests(path, True)]
        found += [(path, manifest) for path in sorted(EXAMPLES.glob("*.yaml")) for manifest in manifests(path, False)]
    wrong = checked = 0
    for path, manifest in found:
        for version in VERSIONS:
            if int(version.split(".")[1]) < since(manifest):
                continue
            checked += 1
            try:
                kubernetes_validate.validate(manifest, version, strict=True)
            except (kubernetes_validate.ValidationError, kubernetes_validate.SchemaNotFoundError) as error:
                wrong += 1
                text = str(error).splitlines()[0][:300]
                print(f"{path.name}: {manifest['kind']} is not as {version} has it: {text}")
    print(f"{len(found)} manifests, {checked} validations, {wrong} wrong")
    return 1 if wrong or not found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
