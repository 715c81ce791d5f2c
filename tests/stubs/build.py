"""Builds the stub libraries with gcc, once per test run. The world they show is `world.World`'s business."""

import atexit
import functools
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

HERE = Path(__file__).parent
C_TYPES = {"c_uint8": "uint8_t", "c_ubyte": "uint8_t", "c_uint16": "uint16_t", "c_uint32": "uint32_t"} | {
    "c_uint64": "uint64_t",
    "c_char": "char",
    "amdsmi_vram_type_t": "uint32_t",
}
STRUCTS = (
    "amd_metrics_table_header_t",
    "amdsmi_gpu_xcp_metrics_t",
    "amdsmi_gpu_metrics_t",
    "amdsmi_kfd_info_t",
    "amdsmi_asic_info_t",
    "amdsmi_driver_info_t",
    "amdsmi_vram_info_t",
    "amdsmi_vram_usage_t",
    "amdsmi_engine_usage_t",
)


def _binding_source() -> str:
    """The text of the installed amdsmi binding, which cannot be imported before its library exists."""
    spec = importlib.util.find_spec("amdsmi")
    if spec is None or not spec.submodule_search_locations:
        pytest.fail("the amdsmi binding is not installed; it is in requirements/dev.txt")
    return (Path(spec.submodule_search_locations[0]) / "amdsmi_wrapper.py").read_text(encoding="utf-8")


def _c_struct(name: str, source: str) -> str:
    """The binding's ctypes fields as a C struct; paddings are spelled out, so natural alignment is its layout."""
    found = re.search(rf"^struct_{name}\._fields_ = \[\n(.*?)^\]", source, re.MULTILINE | re.DOTALL)
    assert found, f"the amdsmi binding has no struct {name} any more"
    fields = re.findall(r"\('(\w+)', (?:ctypes\.)?(?:struct_)?(\w+)(?: \* (\d+))?\)", found[1])
    assert len(fields) == found[1].count("\n"), f"struct {name} has a field that build.py cannot translate"
    lines = (f"    {C_TYPES.get(kind, 'struct ' + kind)} {field}{f'[{n}]' if n else ''};" for field, kind, n in fields)
    return f"struct {name} {{\n" + "\n".join(lines) + "\n};\n"


def _generate_amdsmi(directory: Path) -> None:
    source = _binding_source()
    structs = "#include <stdint.h>\n" + "".join(_c_struct(name, source) for name in STRUCTS)
    (directory / "amdsmi_structs.h").write_text(structs, encoding="utf-8")
    symbols = sorted(set(re.findall(r"_libraries\['libamd_smi\.so'\]\.(\w+)", source)))
    weak = "".join(f"__attribute__((weak)) int {symbol}(void) {{ return 2; }}\n" for symbol in symbols)
    (directory / "amdsmi_symbols.c").write_text(weak, encoding="utf-8")


def _compile(directory: Path, library: str, *sources: Path) -> None:
    flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", f"-I{directory}", f"-I{HERE}"]
    soname = f"-Wl,-soname,{library}"
    subprocess.run(["gcc", *flags, soname, "-o", directory / library, *sources, "-pthread"], check=True)


@functools.cache
def libraries() -> Path:
    """The directory of the built libraries. Without gcc the test is skipped, under CI=true it fails."""
    if shutil.which("gcc") is None:
        complain = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        complain("gcc is not here to build the stubs of the GPU libraries; install gcc")
    directory = Path(tempfile.mkdtemp(prefix="kvpressure-stubs-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    _generate_amdsmi(directory)
    _compile(directory, "libnvidia-ml.so.1", HERE / "nvml.c")
    _compile(directory, "libamd_smi.so", HERE / "amdsmi.c", directory / "amdsmi_symbols.c")
    return directory
