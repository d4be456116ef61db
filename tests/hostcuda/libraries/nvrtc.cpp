// Test-only: emulates NVRTC by the host's compiler. The compiled "code" is the path of a shared
// library, which the emulated runtime opens. Sources can include only the headers that are passed,
// and the device part of cuda_runtime.h. Headers are precompiled. Precompiled headers and compiled
// code are cached for later processes, in a folder per set of headers (build/hostcuda/nvrtc, or
// HOSTCUDA_NVRTC_CACHE).
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <unistd.h>
#include <vector>

#include "cuda_runtime.h"
#include "kernels/cuda/vendor/nvrtc.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace files = std::filesystem;

struct mpg_nvrtc_program {
  files::path folder; // cache folder of the set of headers
  std::string source, made, log;
  std::vector<std::string> exports;
};

static std::string read(const files::path &path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

static void write(const files::path &path, const std::string &text) {
  files::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

static std::string digest(const std::string &text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (unsigned char c : text) hash = (hash ^ c) * 0x100000001b3u;
  char digits[17];
  snprintf(digits, sizeof digits, "%016llx", (unsigned long long)hash);
  return digits;
}

// Runs the compiler on a file. The output is renamed to `to` when it is complete. Returns false if
// the compiler fails; *log has its messages.
static bool compile(const std::string &options, const files::path &folder, const files::path &file,
                    const files::path &to, std::string *log) {
  std::string own = to.string() + "." + std::to_string(getpid());
  std::string command = std::string(HOSTCUDA_COMPILER) + " " + options + " -isystem " +
                        HOSTCUDA_INCLUDE + " -I" + folder.string() + " " + file.string() + " -o " +
                        own + " > " + own + ".log 2>&1";
  bool succeeded = !system(command.c_str());
  *log = read(own + ".log");
  files::remove(own + ".log");
  if (succeeded) files::rename(own, to);
  return succeeded;
}

// Writes the headers, and precompiles the first one, which includes the others.
static void prepare(const files::path &folder, int headers, const char *const *texts,
                    const char *const *names, std::string *log) {
  files::path own = folder.string() + "." + std::to_string(getpid());
  for (int i = 0; i < headers; i++)
    if (strchr(names[i], '/')) write(own / names[i], texts[i]); // the others are system headers
  std::error_code error;
  if (compile("-x c++-header", own, own / names[0], own / (names[0] + std::string(".gch")), log))
    files::rename(own, folder, error);
  files::remove_all(own, error); // exists if the compiler failed or another process was faster
}

EXPORT mpg_nvrtc_result nvrtcVersion(int *major, int *minor) {
  *major = 13, *minor = 0;
  return 0;
}
EXPORT mpg_nvrtc_result nvrtcCreateProgram(mpg_nvrtc_program **program, const char *source,
                                           const char *name, int headers, const char *const *texts,
                                           const char *const *names) {
  (void)name;
  const char *cache = getenv("HOSTCUDA_NVRTC_CACHE");
  std::string all = HOSTCUDA_COMPILER + read(HOSTCUDA_INCLUDE "/cuda_runtime.h") +
                    read(HOSTCUDA_INCLUDE "/cuda_runtime_api.h");
  for (int i = 0; i < headers; i++) all += std::string(names[i]) + texts[i];
  auto *p = new mpg_nvrtc_program{
      (cache ? cache : HOSTCUDA_CACHE) + ("/" + digest(all)), source, "", "", {}};
  if (headers && !files::exists(p->folder)) prepare(p->folder, headers, texts, names, &p->log);
  *program = p;
  return 0;
}
// Source text that is added to a user's kernels: a function that calls a kernel with arguments from
// an array of pointers, and one that returns the sizes of its arguments.
static const char *const CALLS = R"(
namespace hostcuda_calls {
template <int... I> struct places {};
template <int N, int... I> struct count : count<N - 1, N - 1, I...> {};
template <int... I> struct count<0, I...> { typedef places<I...> type; };
template <class... A, int... I> void call(void (*f)(A...), void **p, places<I...>) {
  f(*(A *)p[I]...);
}
template <class... A> void call(void (*f)(A...), void **p) {
  call(f, p, typename count<sizeof...(A)>::type());
}
template <class... A> const unsigned long *sizes(void (*)(A...)) {
  static const unsigned long all[] = {sizeof(A)..., 0};
  return all;
}
}
)";

static void add_call(std::string *source, const std::string &name, const std::string &expression) {
  *source += "extern \"C\" void " + name + "_call(void **p) { hostcuda_calls::call(&" + expression +
             ", p); }\nextern \"C\" const unsigned long *" + name +
             "_sizes() { return hostcuda_calls::sizes(&" + expression + "); }\n";
}

static void add_calls(mpg_nvrtc_program *p) {
  std::string all = "#include <cuda_runtime.h>\n" + p->source + CALLS;
  std::istringstream words(p->source);
  std::string word, last[4];
  while (words >> word) {
    if (last[0] + last[1] + last[2] + last[3] == "extern \"C\" __global__ void ") {
      std::string name = word.substr(0, word.find('('));
      add_call(&all, name, name);
    }
    for (int i = 0; i < 3; i++) last[i] = last[i + 1];
    last[3] = word + " ";
  }
  for (size_t i = 0; i < p->exports.size(); i++)
    add_call(&all, "hostcuda_export_" + std::to_string(i), p->exports[i]);
  p->source = all;
}

EXPORT mpg_nvrtc_result nvrtcAddNameExpression(mpg_nvrtc_program *p, const char *expression) {
  p->exports.push_back(expression);
  return 0;
}
EXPORT mpg_nvrtc_result nvrtcGetLoweredName(mpg_nvrtc_program *p, const char *expression,
                                            const char **name) {
  static const char *const names[] = {"hostcuda_export_0", "hostcuda_export_1", "hostcuda_export_2",
                                      "hostcuda_export_3"};
  for (size_t i = 0; i < p->exports.size() && i < 4; i++)
    if (p->exports[i] == expression) {
      *name = names[i];
      return 0;
    }
  return 10;
}

EXPORT mpg_nvrtc_result nvrtcCompileProgram(mpg_nvrtc_program *p, int count,
                                            const char *const *options) {
  bool plain = false, card = false; // plain: generated by fusion, which disables contraction
  for (int i = 0; i < count; i++) plain |= !strcmp(options[i], "--fmad=false");
  for (int i = 0; i < count; i++) card |= !strncmp(options[i], "--gpu-architecture=", 19);
  if (!card) return 5;
  // Like NVRTC from NVIDIA's wheels, fails unless this file is already open.
  if (!dlopen("libnvrtc-builtins.so.13.0", RTLD_NOW | RTLD_NOLOAD)) {
    p->log = "nvrtc: error: failed to open libnvrtc-builtins.so.13.0";
    return 7;
  }
  if (!plain) add_calls(p);
  for (int i = 0; i < count; i++) // applies "-DNAME=VALUE"
    if (!plain && !strncmp(options[i], "-D", 2) && strchr(options[i], '='))
      p->source = "#define " + std::string(options[i] + 2, strcspn(options[i] + 2, "=")) + " " +
                  (strchr(options[i], '=') + 1) + "\n" + p->source;
  if (!p->log.empty()) return 6;
  p->made = p->folder / (digest(p->source) + ".so");
  if (files::exists(p->made)) return 0;
  files::path file = p->made + "." + std::to_string(getpid()) + ".cpp";
  write(file, p->source);
  bool succeeded = compile("-shared -nostdlib -Wl,--no-as-needed " HOSTCUDA_LIBRARY, p->folder,
                           file, p->made, &p->log);
  files::remove(file);
  return succeeded ? 0 : 6;
}
EXPORT mpg_nvrtc_result nvrtcGetCUBINSize(mpg_nvrtc_program *p, size_t *size) {
  *size = p->made.size() + 1;
  return 0;
}
EXPORT mpg_nvrtc_result nvrtcGetCUBIN(mpg_nvrtc_program *p, char *code) {
  strcpy(code, p->made.c_str());
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
EXPORT mpg_nvrtc_result nvrtcDestroyProgram(mpg_nvrtc_program **p) {
  delete *p;
  *p = nullptr;
  return 0;
}
EXPORT const char *nvrtcGetErrorString(mpg_nvrtc_result result) {
  return result ? "NVRTC_ERROR_COMPILATION" : "NVRTC_SUCCESS";
}
