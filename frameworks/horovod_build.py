"""Builds Horovod 0.28.1 for this PyTorch, over Gloo: two lines of its CMake files ask for a C++ that is too old by now.

It wants cmake and a C++ compiler, and setuptools as old as itself, which the pins have.
"""

import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

PIP = [sys.executable, "-m", "pip"]
KIND = ["--no-deps", "--no-build-isolation"]


def main():
    with tempfile.TemporaryDirectory() as folder:
        source = ["--no-binary", "horovod", "horovod==0.28.1", "-d", folder]
        subprocess.run([*PIP, "download", *KIND, *source], check=True)
        with tarfile.open(next(Path(folder).glob("*.tar.gz"))) as packed:
            packed.extractall(folder, filter="data")
        unpacked = Path(folder) / "horovod-0.28.1"
        for name in ("CMakeLists.txt", "horovod/torch/CMakeLists.txt"):
            file = unpacked / name
            text = file.read_text()
            assert "CMAKE_CXX_STANDARD 14" in text, name
            file.write_text(text.replace("CMAKE_CXX_STANDARD 14", "CMAKE_CXX_STANDARD 17"))
        chosen = {"HOROVOD_WITH_GLOO": "1", "HOROVOD_WITH_PYTORCH": "1"}
        left_out = ("TENSORFLOW", "MXNET", "MPI")
        chosen |= {f"HOROVOD_WITHOUT_{name}": "1" for name in left_out}
        subprocess.run(
            [*PIP, "install", *KIND, str(unpacked)], env={**os.environ, **chosen}, check=True
        )


if __name__ == "__main__":
    main()
