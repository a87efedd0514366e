"""The wheel and the source distribution: what they contain, and that the wheel works in an empty environment."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("build")
pytest.importorskip("setuptools")

ROOT = Path(__file__).parent.parent
DATA = {
    f"softaug/{path.relative_to(ROOT / 'src' / 'softaug').as_posix()}"
    for path in (ROOT / "src" / "softaug").rglob("*")
    if path.is_file() and path.suffix in (".css", ".csv", ".html", ".js", ".md", ".typed")
} | {
    f"softaug/{path.relative_to(ROOT / 'src' / 'softaug').as_posix()}"
    for path in (ROOT / "src" / "softaug" / "data" / "zoo").rglob("*")
    if path.is_file()
}


@pytest.fixture(scope="module")
def distributions(tmp_path_factory):
    """The wheel and the sdist, built from a copy of what they are made from, without network."""
    folder = tmp_path_factory.mktemp("distributions")
    source = folder / "source"
    shutil.copytree(
        ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "*.so")
    )
    shutil.copytree(ROOT / "tests", source / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder / "dist"), str(source)]
    outcome = subprocess.run(command, capture_output=True, text=True)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    (wheel,), (sdist,) = (folder / "dist").glob("*.whl"), (folder / "dist").glob("*.tar.gz")
    return wheel, sdist


@pytest.mark.slow
def test_the_wheel_has_the_package_its_data_and_nothing_else(distributions):
    names = zipfile.ZipFile(distributions[0]).namelist()
    files = {name for name in names if ".dist-info/" not in name}
    modules = {f"softaug/{p.relative_to(ROOT / 'src' / 'softaug').as_posix()}" for p in modules_here()}
    assert files == modules | DATA
    assert {"softaug/py.typed", "softaug/results/report/page.css", "softaug/results/report/page.js"} <= files
    assert any(name.startswith("softaug/data/") and name.endswith(".csv") for name in files)


@pytest.mark.slow
def test_the_wheel_has_the_policies_of_the_demo(distributions):
    names = set(zipfile.ZipFile(distributions[0]).namelist())
    for policy in ("walker_stand-sac", "walker_stand-soda_overlay"):
        for file in (
            "policy.safetensors",
            "config.json",
            "results.json",
            "SHA256SUMS",
            "README.md",
            "replay.mp4",
        ):
            assert f"softaug/data/zoo/{policy}/{file}" in names


def modules_here():
    return (ROOT / "src" / "softaug").rglob("*.py")


@pytest.mark.slow
def test_the_sdist_builds_the_same_files(distributions):
    with tarfile.open(distributions[1]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "src/softaug/cli.py"} <= names
    assert {f"src/{name}" for name in DATA} <= names


@pytest.mark.slow
def test_doctor_runs_from_the_installed_wheel(distributions, tmp_path):
    """In an empty virtual environment that sees the libraries installed here, but not this repository."""
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    site = Path(sysconfig.get_path("purelib", vars={"base": str(tmp_path / "venv")}))
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps"]
    subprocess.run([*command, "--no-index", str(distributions[0])], check=True, capture_output=True)
    # Libraries only: an editable softaug would need its own .pth file, which is not read from here.
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*arguments):
        return subprocess.run(
            arguments, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
        )

    where = run(python, "-c", "import softaug; print(softaug.__file__)")
    assert where.stdout.strip() == str(site / "softaug" / "__init__.py"), where.stderr
    doctor = run(tmp_path / "venv" / "bin" / "softaug", "doctor")
    assert doctor.returncode == 0, doctor.stdout + doctor.stderr
    assert "Training can run here." in doctor.stdout
