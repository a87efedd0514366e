"""Choose an OpenGL back end that works here, with or without a display.

`choose_backend` runs before MuJoCo is first imported and only asks the system's libraries.
`python -m softaug.envs.gl` renders a frame for real.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from softaug.errors import UserError

BACKENDS = ("egl", "glfw", "osmesa")
REMEDY = "install Mesa's EGL and software renderer (Debian and Ubuntu: apt-get install libegl1 libgl1 libgl1-mesa-dri)"

_EGL_PLATFORM_DEVICE = 0x313F
_MAX_DEVICES = 64
GPU_VENDORS = ("0x10de", "0x1002", "0x8086")
"""PCI vendor numbers of NVIDIA, AMD and Intel."""


def choose_backend() -> str:
    """Set `MUJOCO_GL` to a back end that works, unless it is set already; returns its name.

    Costs a few milliseconds and no subprocess. A back end that dm_control has loaded before stays.
    """
    loaded = sys.modules.get("dm_control._render")
    if loaded is not None and loaded.BACKEND is not None:
        return loaded.BACKEND
    chosen = os.environ.get("MUJOCO_GL")
    if chosen:
        return chosen
    for backend in BACKENDS:
        if is_available(backend):
            os.environ["MUJOCO_GL"] = backend
            if backend != "glfw":
                # PyOpenGL would otherwise look for a display.
                os.environ["PYOPENGL_PLATFORM"] = backend
            return backend
    raise UserError(
        f"No OpenGL back end works here (EGL, GLFW with a display and OSMesa were tried); {REMEDY}."
    )


def is_available(backend: str) -> bool:
    """Whether the system's libraries offer this back end (nothing is rendered)."""
    # A user's PYOPENGL_PLATFORM binds PyOpenGL, on which the two headless back ends rest.
    platform = os.environ.get("PYOPENGL_PLATFORM")
    if backend == "glfw":
        return _glfw_available()
    if platform not in (None, "", backend):
        return False
    return _egl_available() if backend == "egl" else _library("libOSMesa.so.8", "libOSMesa.so.6") is not None


def _library(*names: str) -> ctypes.CDLL | None:
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def _egl_available() -> bool:
    """Whether some EGL device (a GPU or Mesa's software renderer) can be initialized without a display."""
    egl = _library("libEGL.so.1")
    if egl is None or _library("libOpenGL.so.0", "libGL.so.1") is None:
        return False
    egl.eglGetProcAddress.restype = ctypes.c_void_p
    egl.eglGetProcAddress.argtypes = [ctypes.c_char_p]
    query_address = egl.eglGetProcAddress(b"eglQueryDevicesEXT")
    display_address = egl.eglGetProcAddress(b"eglGetPlatformDisplayEXT")
    if not query_address or not display_address:
        return False
    int_pointer = ctypes.POINTER(ctypes.c_int)
    query_devices = ctypes.CFUNCTYPE(
        ctypes.c_uint, ctypes.c_int, ctypes.POINTER(ctypes.c_void_p), int_pointer
    )(query_address)
    get_display = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint, ctypes.c_void_p, int_pointer)(
        display_address
    )
    egl.eglInitialize.restype = ctypes.c_uint
    egl.eglInitialize.argtypes = [ctypes.c_void_p, int_pointer, int_pointer]

    devices, count = (ctypes.c_void_p * _MAX_DEVICES)(), ctypes.c_int(0)
    if not query_devices(_MAX_DEVICES, devices, ctypes.byref(count)):
        return False
    wanted = os.environ.get("MUJOCO_EGL_DEVICE_ID", "")
    candidates = devices[: count.value]
    if wanted.isdigit():
        candidates = candidates[int(wanted) : int(wanted) + 1]
    for device in candidates:
        display = get_display(_EGL_PLATFORM_DEVICE, device, None)
        # Not terminated again: dm_control initializes the same display right afterwards.
        if display and egl.eglInitialize(display, None, None):
            return True
    return False


def _glfw_available() -> bool:
    if sys.platform in ("darwin", "win32"):
        return True
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return False
    try:
        import glfw
    except ImportError:
        return False
    return bool(glfw.init())


def renderer_of(physics: Any) -> str:
    """GL_RENDERER of the context that renders this dm_control physics."""
    from OpenGL import GL

    with physics.contexts.gl.make_current() as context:
        return context.call(GL.glGetString, GL.GL_RENDERER).decode()


def is_software(renderer: str) -> bool:
    """Whether GL_RENDERER names one of Mesa's renderers on the CPU."""
    return any(name in renderer.lower() for name in ("llvmpipe", "softpipe", "swrast", "software"))


def gpu_present() -> bool:
    """Whether the system has a GPU: its driver's device file, or a PCI display device of a GPU maker."""
    if any(Path(device).exists() for device in ("/dev/nvidia0", "/dev/kfd")):
        return True
    vendors = Path("/sys/class/drm").glob("renderD*/device/vendor")
    return any(vendor.read_text().strip() in GPU_VENDORS for vendor in vendors)


@dataclass(frozen=True)
class RenderCheck:
    """What came of rendering a frame in a process of its own."""

    backend: str
    ok: bool
    milliseconds: float = 0.0
    """Per 100 x 100 frame of walker_walk."""
    renderer: str = ""
    """The GL driver's own name: a GPU, or llvmpipe (software)."""
    error: str = ""


_RENDER_SCRIPT = """
import json, time
from dm_control import suite
from OpenGL import GL
env = suite.load("walker", "walk", task_kwargs={"random": 0})
env.reset()
image = env.physics.render(100, 100, camera_id=0)
assert image.std() > 1, "the frame is blank"
start = time.perf_counter()
for _ in range(10):
    env.physics.render(100, 100, camera_id=0)
milliseconds = (time.perf_counter() - start) * 100
with env.physics.contexts.gl.make_current() as gl:
    renderer = gl.call(GL.glGetString, GL.GL_RENDERER).decode()
print(json.dumps({"milliseconds": milliseconds, "renderer": renderer}))
"""


def check_render(backend: str, timeout_seconds: float = 120) -> RenderCheck:
    """Render frames with this back end in a subprocess, so that a crash or hang there is only a report."""
    environment = {**os.environ, "MUJOCO_GL": backend}
    environment.pop("PYOPENGL_PLATFORM", None)
    try:
        done = subprocess.run(
            [sys.executable, "-c", _RENDER_SCRIPT],
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
        )
    except subprocess.TimeoutExpired:
        return RenderCheck(backend, False, error=f"no frame within {timeout_seconds:.0f} s")
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        return RenderCheck(
            backend, False, error=lines[-1] if lines else f"ended with status {done.returncode}"
        )
    return RenderCheck(backend, True, **json.loads(done.stdout.strip().splitlines()[-1]))


def find_working_backend() -> tuple[RenderCheck | None, list[RenderCheck]]:
    """The first back end that really renders, and the ones that were tried before it in vain."""
    forced = os.environ.get("MUJOCO_GL")
    failed = []
    for backend in (forced,) if forced else BACKENDS:
        if backend == "glfw" and not forced and not _glfw_available():
            failed.append(RenderCheck(backend, False, error="no display"))
            continue
        check = check_render(backend)
        if check.ok:
            return check, failed
        failed.append(check)
    return None, failed


def main() -> int:
    """Exit status 0 when a back end renders, 1 when none does."""
    working, failed = find_working_backend()
    if working is None:
        reasons = "; ".join(f"{check.backend}: {check.error}" for check in failed)
        print(
            f"no OpenGL back end works, so environments cannot render here ({reasons}); {REMEDY}",
            file=sys.stderr,
        )
        return 1
    print(f"OpenGL: {working.backend}, {working.renderer}, {working.milliseconds:.1f} ms per 100x100 frame")
    return 0


if __name__ == "__main__":
    sys.exit(main())
