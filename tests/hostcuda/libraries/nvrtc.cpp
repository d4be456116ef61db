// Test-only: NVRTC, by the host's compiler. What it makes is the path of a shared library, which
// the stand-in runtime opens. In a folder of its own (build/hostcuda/nvrtc), as compiling takes a
// second a group: MPGLUON_NVRTC names it where that is wanted. It gets by on the headers that it is
// given.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <sys/stat.h>
#include <unistd.h>

#include "cuda_runtime.h"
#include "kernels/cuda/vendor/nvrtc.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

struct mpg_nvrtc_program {
  std::string folder, name, log;
};

static void write(const std::string &path, const char *text) {
  for (size_t at = path.find('/', 1); at != std::string::npos; at = path.find('/', at + 1))
    mkdir(path.substr(0, at).c_str(), 0777);
  FILE *file = fopen(path.c_str(), "w");
  fputs(text, file);
  fclose(file);
}

EXPORT mpg_nvrtc_result nvrtcCreateProgram(mpg_nvrtc_program **program, const char *source,
                                           const char *name, int headers, const char *const *texts,
                                           const char *const *names) {
  char folder[] = "/tmp/hostcuda-nvrtc-XXXXXX";
  if (!mkdtemp(folder)) return 1;
  *program = new mpg_nvrtc_program{folder, name, ""};
  for (int i = 0; i < headers; i++)
    if (strchr(names[i], '/'))
      write((*program)->folder + "/" + names[i], texts[i]); // the others are the system's
  write((*program)->folder + "/group.cpp", source);
  return 0;
}
EXPORT mpg_nvrtc_result nvrtcCompileProgram(mpg_nvrtc_program *p, int count,
                                            const char *const *options) {
  bool plain = false; // no contraction
  for (int i = 0; i < count; i++) plain |= !strcmp(options[i], "--fmad=false");
  if (!plain) return 5;
  std::string out = p->folder + "/group.so", log = p->folder + "/log";
  std::string command = std::string(HOSTCUDA_COMPILER) + " -shared -fvisibility=hidden -isystem " +
                        HOSTCUDA_INCLUDE + " -I" + p->folder + " " + p->folder + "/group.cpp " +
                        HOSTCUDA_LIBRARY + " -o " + out + " > " + log + " 2>&1";
  int status = system(command.c_str());
  if (FILE *file = fopen(log.c_str(), "r")) {
    char part[4096];
    p->log.assign(part, fread(part, 1, sizeof part, file));
    fclose(file);
  }
  return status ? 6 : 0;
}
EXPORT mpg_nvrtc_result nvrtcGetCUBINSize(mpg_nvrtc_program *p, size_t *size) {
  *size = p->folder.size() + strlen("/group.so") + 1;
  return 0;
}
EXPORT mpg_nvrtc_result nvrtcGetCUBIN(mpg_nvrtc_program *p, char *code) {
  strcpy(code, (p->folder + "/group.so").c_str());
  return 0;
}
EXPORT mpg_nvrtc_result nvrtcGetProgramLogSize(mpg_nvrtc_program *p, size_t *size) {
  *size = p->log.size() + 1;
  return 0;
}
EXPORT mpg_nvrtc_result nvrtcGetProgramLog(mpg_nvrtc_program *p, char *log) {
  strcpy(log, p->log.c_str());
  return 0;
}
EXPORT mpg_nvrtc_result nvrtcDestroyProgram(
    mpg_nvrtc_program *
        *p) { // its folder stays until the library has been opened; see cudaLibraryLoadData
  delete *p;
  *p = nullptr;
  return 0;
}
EXPORT const char *nvrtcGetErrorString(mpg_nvrtc_result result) {
  return result ? "NVRTC_ERROR_COMPILATION" : "NVRTC_SUCCESS";
}
