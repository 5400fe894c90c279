"""Builds the wheel of the Python package (PEP 517), without any package of the index but, where it is missing, CMake.

In:  the tree this folder stands in: the C library, the program, the package's sources.
Out: one wheel for every Python 3 of this system: py3-none-<platform>. The library is built by CMake in build/python.

    pip install ./python                         a wheel, installed
    python3 python/backend.py stage DIR BUILD    the package in DIR, around the library and the program of a build folder
"""

import base64
import hashlib
import io
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(HERE))

METADATA = """Metadata-Version: 2.1
Name: tenon
Version: {version}
Summary: A tensor graph compiler: functions of arrays become machine code in milliseconds
License: Apache-2.0
Requires-Python: >=3.9
Requires-Dist: numpy>=1.22
Description-Content-Type: text/markdown

{readme}"""

ENTRY_POINTS = """[console_scripts]
tenon = tenon.__main__:main

[torch_dynamo_backends]
tenon = tenon.torch:backend
"""

NATIVE = ("bin/tenon", "lib/libtenon.so.0")


def version():
    return re.search(r"project\(tenon VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text())[1]


def metadata():
    return METADATA.format(version=version(), readme=(HERE / "README.md").read_text())


# ---- the native parts -----------------------------------------------------------------------------------------------------


def run(*command, **more):
    done = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)
    if done.returncode:
        sys.stderr.write(done.stdout[-4000:])
        raise SystemExit(f"tenon: {' '.join(map(str, command))} failed")


def build():
    """The build folder, and one with what goes into the wheel: bin/tenon, which finds its library from where it is, and lib/."""
    folder = ROOT / "build" / "python"
    if not os.access(ROOT, os.W_OK):
        folder = Path(tempfile.mkdtemp())
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    if (folder / "CMakeCache.txt").exists():
        generator = []
    cc = os.environ.get("CC")
    run("cmake", "-S", ROOT, "-B", folder, *generator, "-DCMAKE_BUILD_TYPE=Release", "-DTENON_TESTS=OFF", "-DCMAKE_INSTALL_LIBDIR=lib",
        "-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON", *([f"-DCMAKE_C_COMPILER={cc}"] if cc else []))
    run("cmake", "--build", folder, "-j", os.cpu_count() or 1, "--target", "tenon", "tenon_program")
    native = folder / "native"
    shutil.rmtree(native, ignore_errors=True)
    for name in NATIVE:
        (native / name).parent.mkdir(parents=True)
        shutil.copy(folder / Path(name).name, native / name)
        if shutil.which("strip"):
            run("strip", native / name)
    return folder, native


def platform_tag(native):
    """manylinux_2_N by the newest version of libc's symbols that the files ask for; without any, the plain platform."""
    machine = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    if platform.system() != "Linux":
        return machine
    minors = [int(m) for f in native.glob("*/*") for m in re.findall(rb"GLIBC_2\.(\d+)", f.read_bytes())]
    return f"manylinux_2_{max(minors + [17])}_{platform.machine()}" if minors else machine


# ---- the package ----------------------------------------------------------------------------------------------------------


def write_generated(package, program, include, library):
    import generate
    env = dict(os.environ, LD_LIBRARY_PATH=f"{library}{os.pathsep}{os.environ.get('LD_LIBRARY_PATH', '')}")
    table = subprocess.run([program, "ops", "--json"], env=env, stdout=subprocess.PIPE, check=True, text=True).stdout
    texts = [(include / name).read_text() for name in generate.HEADERS]
    (package / "_abi.py").write_text(generate.abi(texts))
    (package / "_ops.py").write_text(generate.ops(json.loads(table)["ops"]))


def stage(out, folder, native=None):
    """The package as a folder `tenon` in out: sources, what is generated, and the native files (of a build folder: links)."""
    package = Path(out) / "tenon"
    shutil.rmtree(package, ignore_errors=True)
    shutil.copytree(HERE / "tenon", package, ignore=shutil.ignore_patterns("__pycache__", "_native", "_abi.py", "_ops.py"))
    write_generated(package, Path(folder) / "tenon", ROOT / "include" / "tenon", folder)
    if native is not None:
        shutil.copytree(native, package / "_native")
        return package
    for name in NATIVE:
        (package / "_native" / name).parent.mkdir(parents=True)
        (package / "_native" / name).symlink_to((Path(folder) / Path(name).name).resolve())
    return package


def write_wheel(path, folder, dist_info, tag):
    """A zip with the package, its metadata, and RECORD: every file with its hash. The same input gives the same bytes."""
    files = sorted(p for p in Path(folder).rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    record = io.StringIO()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as z:

        def add(name, data, mode=0o644):
            info = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))
            info.external_attr, info.compress_type = (0o100000 | mode) << 16, zipfile.ZIP_DEFLATED
            z.writestr(info, data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.write(f"{name},sha256={digest},{len(data)}\n")

        for p in files:
            add(p.relative_to(folder).as_posix(), p.read_bytes(), 0o755 if os.access(p, os.X_OK) else 0o644)
        add(f"{dist_info}/METADATA", metadata().encode())
        add(f"{dist_info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: tenon backend.py\nRoot-Is-Purelib: false\nTag: {tag}\n".encode())
        add(f"{dist_info}/entry_points.txt", ENTRY_POINTS.encode())
        add(f"{dist_info}/LICENSE", (ROOT / "LICENSE").read_bytes())
        record.write(f"{dist_info}/RECORD,,\n")
        z.writestr(f"{dist_info}/RECORD", record.getvalue())


# ---- PEP 517 --------------------------------------------------------------------------------------------------------------


def get_requires_for_build_wheel(config_settings=None):
    return [] if shutil.which("cmake") else ["cmake>=3.25"]


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    name = f"tenon-{version()}.dist-info"
    folder = Path(metadata_directory) / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "METADATA").write_text(metadata())
    (folder / "entry_points.txt").write_text(ENTRY_POINTS)
    return name


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    folder, native = build()
    tag = f"py3-none-{platform_tag(native)}"
    name = f"tenon-{version()}-{tag}.whl"
    with tempfile.TemporaryDirectory() as out:
        package = stage(out, folder, native)
        os.chmod(package / "_native" / "bin" / "tenon", 0o755)
        write_wheel(Path(wheel_directory) / name, out, f"tenon-{version()}.dist-info", tag)
    return name


def build_sdist(sdist_directory, config_settings=None):
    raise SystemExit("tenon: build wheels from the repository: pip wheel ./python")


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[1] != "stage":
        raise SystemExit(__doc__)
    stage(sys.argv[2], Path(sys.argv[3]).resolve())
