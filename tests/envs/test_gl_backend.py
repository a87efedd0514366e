"""Choosing and checking a GL back end."""

import os
import subprocess
import sys

import pytest

from softaug.envs import gl, make_env

NO_EGL = {"__EGL_VENDOR_LIBRARY_FILENAMES": os.devnull, "DISPLAY": "", "WAYLAND_DISPLAY": ""}
linux = pytest.mark.skipif(sys.platform != "linux", reason="Linux back ends")


def run_python(code, **environment):
    clean = {k: v for k, v in os.environ.items() if k not in ("MUJOCO_GL", "PYOPENGL_PLATFORM")}
    return subprocess.run(
        [sys.executable, "-c", code], env={**clean, **environment}, capture_output=True, text=True, timeout=60
    )


CHOOSE = "import os; from softaug.envs import gl; print(gl.choose_backend(), os.environ['MUJOCO_GL'])"


@linux
def test_a_back_end_is_chosen_when_none_is_named():
    backend, variable = run_python(CHOOSE).stdout.split()
    assert backend == variable and backend in gl.BACKENDS


def test_a_named_back_end_is_kept():
    assert run_python(CHOOSE, MUJOCO_GL="osmesa").stdout.split() == ["osmesa", "osmesa"]


@linux
def test_without_any_the_error_names_the_remedy():
    if gl.is_available("osmesa"):
        pytest.skip("OSMesa is installed here")
    done = run_python(CHOOSE, **NO_EGL)
    assert done.returncode != 0
    assert "apt-get install libegl1" in done.stderr


def test_dm_control_with_another_back_end_loaded_first():
    """A back end without a display fails at the first frame; the sentence says what to do."""
    code = (
        "from dm_control import suite; from softaug.envs import make_env; from softaug.errors import UserError\n"
        "try: make_env('cartpole_swingup').reset()\n"
        "except UserError as error: print(error)"
    )
    done = run_python(code, MUJOCO_GL="glfw", DISPLAY="", WAYLAND_DISPLAY="")
    assert "import softaug before dm_control" in done.stdout, done.stderr


def test_render_check_renders():
    check = gl.check_render(gl.choose_backend())
    assert check.ok and check.milliseconds > 0 and check.renderer


def test_render_check_reports_failure():
    check = gl.check_render("nonsense")
    assert not check.ok and "nonsense" in check.error


def test_program_prints_the_working_back_end(capsys):
    assert gl.main() == 0
    assert "ms per 100x100 frame" in capsys.readouterr().out


def test_program_says_what_to_install_where_nothing_renders(monkeypatch, capsys):
    failed = [gl.RenderCheck("egl", False, error="no library")]
    monkeypatch.setattr(gl, "find_working_backend", lambda: (None, failed))
    assert gl.main() == 1
    said = capsys.readouterr().err
    assert "egl: no library" in said and "apt-get install libegl1" in said


def test_an_environment_names_what_renders_it():
    env = make_env("cartpole_swingup", image_size=32).unwrapped
    working, _ = gl.find_working_backend()
    assert env.gl_renderer == working.renderer
    env.close()


def test_software_renderers_are_told_from_gpus():
    assert gl.is_software("llvmpipe (LLVM 15.0.6, 256 bits)") and gl.is_software("softpipe")
    assert not gl.is_software("NVIDIA A100-SXM4-40GB/PCIe/SSE2") and not gl.is_software("AMD Radeon RX 6800")
