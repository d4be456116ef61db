"""The cache of compiled GPU code (kernels/cuda/vendor/nvrtc_cache.c), tested without a GPU.

Code is loaded only from files that no other user can write.
"""

import os
import shutil
import subprocess

import pytest

from support.paths import ROOT

PROGRAM = r"""
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/cuda/vendor/nvrtc_cache.h"

void *mpg_malloc(size_t size) { return malloc(size); }
void mpg_free(void *block) { free(block); }
char *mpg_strdup(const char *text) { return strdup(text); }
mpg_status mpg_fail(mpg_status status, const char *format, ...) { return format ? status : MPG_OK; }
mpg_status mpg_grow(void **items, size_t *capacity, size_t count, size_t size) {
  if (count > *capacity) *items = realloc(*items, (*capacity = 2 * count) * size);
  return MPG_OK;
}
void mpg_nvrtc_free(mpg_nvrtc_code *code) { free(code->code); }

int main(int count, char **words) {
  bool used;
  mpg_nvrtc_key key = {{1, 2}};
  mpg_nvrtc_code code = {.code = "compiled", .size = 8};
  if (mpg_nvrtc_cache_open(&used) != MPG_OK || !used) return puts("no cache"), 0;
  if (count > 1) return mpg_nvrtc_cache_write(&key, 0, &code), 0;
  return puts(mpg_nvrtc_cache_read(&key, 0, &code) ? "read" : "nothing"), 0;
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("code_cache")
    source = folder / "program.c"
    source.write_text(PROGRAM)
    cache = os.path.join(ROOT, "kernels", "cuda", "vendor", "nvrtc_cache.c")
    flags = ["-std=gnu11", "-I" + ROOT, "-I" + os.path.join(ROOT, "csrc"), "-pthread"]
    binary = str(folder / "program")
    subprocess.run([compiler, *flags, str(source), cache, "-o", binary], check=True)

    def run(folder, *words):
        env = {**os.environ, "MPGLUON_CUDA_CACHE": str(folder), "LD_PRELOAD": ""}
        done = subprocess.run(
            [binary, *words], env=env, capture_output=True, text=True, timeout=20, check=True
        )
        return done.stdout.strip()

    return run


def test_gpu_code_is_read_only_from_private_files(program, tmp_path):
    folder = tmp_path / "kept"
    program(folder, "write")
    assert program(folder) == "read"
    (name,) = os.listdir(folder)
    path, aside = folder / name, tmp_path / "aside"
    for mode in (0o620, 0o602):
        path.chmod(mode)
        assert program(folder) == "nothing"
    path.chmod(0o600)
    assert program(folder) == "read"
    path.rename(aside)
    path.symlink_to(aside)
    assert program(folder) == "nothing"
    path.unlink()
    os.mkfifo(path, 0o600)
    assert program(folder) == "nothing"
    path.unlink()
    aside.rename(path)
    if os.geteuid() == 0:
        os.chown(path, 65534, -1)
        assert program(folder) == "nothing"


def test_gpu_code_cache_refuses_folders_writable_by_other_users(program, tmp_path):
    folder = tmp_path / "kept"
    program(folder, "write")
    for mode, answer in ((0o770, "no cache"), (0o1777, "no cache"), (0o755, "read")):
        folder.chmod(mode)
        assert program(folder) == answer
    if os.geteuid() == 0:
        os.chown(folder, 65534, -1)
        assert program(folder) == "no cache"
