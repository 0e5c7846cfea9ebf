"""What the other tests admitted, and every manifest, against the schemas of current versions of Kubernetes."""

import copy

import kubernetes_validate
import yaml
from bench import ROOT, case

VERSIONS = [f"1.{minor}" for minor in range(28, 38)]
# What has fields that are younger than the oldest of the versions, and the first version that has them.
YOUNGER = {"delivery image": 31, "restricted.yaml": 31, "dra.yaml": 31}


def validated(documents):
    """How many validations, and what was wrong."""
    tried, wrong = 0, []
    for what, document in documents:
        # The API server writes null where it has nothing, which is not what it would be sent.
        document = without_nulls(copy.deepcopy(document))
        document.setdefault("apiVersion", "v1")
        document.setdefault("kind", "Pod")
        for version in VERSIONS:
            if any(what.startswith(name) and int(version.split(".")[1]) < since for name, since in YOUNGER.items()):
                continue
            tried += 1
            try:
                kubernetes_validate.validate(document, version, strict=True)
            except kubernetes_validate.SchemaNotFoundError:
                wrong.append(f"{what}, {version}: there is no {document['kind']} of {document['apiVersion']}")
            except kubernetes_validate.ValidationError as why:
                wrong.append(f"{what}, {version}: {'.'.join(map(str, why.path))}: {why.message[:200]}")
    return tried, wrong


def without_nulls(value):
    if isinstance(value, dict):
        return {key: without_nulls(one) for key, one in value.items() if one is not None and key != "managedFields"}
    return [without_nulls(one) for one in value] if isinstance(value, list) else value


@case("the validation can tell right from wrong")
def self_check(bench):
    good = {"metadata": {"name": "a"}, "spec": {"containers": [{"name": "a", "image": "b"}]}}
    assert validated([("good", good)]) == (len(VERSIONS), []), validated([("good", good)])
    bad = copy.deepcopy(good)
    bad["spec"]["containers"][0]["volumeMounts"] = [{"name": "a", "mountpath": "/x"}]
    assert len(validated([("bad", bad)])[1]) == len(VERSIONS)


def validated_files(directory, is_meant):
    documents = []
    for file in sorted(directory.glob("*.yaml")):
        for one in filter(is_meant, filter(None, yaml.safe_load_all(file.read_text()))):
            documents.append((f"{file.name}: {one['kind']} {one['metadata'].get('name')}", one))
    tried, wrong = validated(documents)
    assert not wrong, "\n".join(wrong[:10])
    return f"{len(documents)} objects, {tried} validations"


@case(f"manifests, {VERSIONS[0]} to {VERSIONS[-1]}")
def manifests(bench):
    # Kubernetes has no schema for cert-manager's.
    return validated_files(ROOT / "deploy" / "manifests", lambda one: "cert-manager.io" not in one["apiVersion"])


@case(f"examples, {VERSIONS[0]} to {VERSIONS[-1]}")
def examples(bench):
    return validated_files(ROOT / "examples", lambda one: True)


@case(f"pods that were admitted, {VERSIONS[0]} to {VERSIONS[-1]}")
def pods(bench):
    tried, wrong = validated(bench.admitted.items())
    assert not wrong, "\n".join(wrong[:10])
    return f"{len(bench.admitted)} pods, {tried} validations"
