#include "kernels/cuda/fusion/generated.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/cuda.h"
extern "C" {
#include "kernels/cuda/vendor/library.h"
#include "kernels/cuda/vendor/nvrtc.h"
#include "kernels/cuda/fusion/specialise.h"
}

namespace {

/* --- Text ------------------------------------------------------------------------------------- */
struct text {
  char *data;
  size_t length, capacity;
  bool failed; /* no memory */

  __attribute__((format(printf, 2, 3))) void add(const char *format, ...) {
    va_list arguments, again;
    va_start(arguments, format);
    va_copy(again, arguments);
    int more = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    if (more < 0 || mpg_grow((void **)&data, &capacity, length + (size_t)more + 1, 1) != MPG_OK)
      failed = true;
    if (!failed) length += (size_t)vsnprintf(data + length, (size_t)more + 1, format, again);
    va_end(again);
  }
};

const char *const unary_names[] = {
#define FLOAT_ROWS(name, expression_f, expression_d) #name,
#include "kernels/common/unary.def"
};
const char *const binary_names[] = {
#define FLOAT_ROWS(name, expression_f, expression_d) #name,
#include "kernels/common/binary.def"
};

const char *type_of(int dtype) {
  return dtype == MPG_FLOAT16 ? "mpg_half" : dtype == MPG_BFLOAT16 ? "mpg_bfloat16" : "float";
}

/* Where an operand that stands still along some dims has element i. */
void add_place(text *t, const mpg_step_program *p, int number) {
  const mpg_step_operand *o = &p->operands[number];
  const char *type = p->count <= 0x7fffffff ? "uint32_t" : "uint64_t";
  t->add(
      "struct place_%d {\n  static __device__ __forceinline__ bool at(int64_t i, int64_t *place) "
      "{\n    %s rest = (%s)i, next, index;\n    int64_t where = 0;\n    bool first = true;\n",
      number, type, type);
  long long distance = 1;
  for (int d = p->ndim - 1; d >= 0; d--) {
    if (d)
      t->add("    next = rest / %lluu;\n", (unsigned long long)p->dims[d]);
    else
      t->add("    next = 0;\n");
    t->add("    index = rest - next * %lluu;\n    rest = next;\n", (unsigned long long)p->dims[d]);
    if (o->varying >> d & 1) {
      t->add("    where += (int64_t)index * %lldLL;\n", distance);
      distance *= p->dims[d];
    } else {
      t->add("    first &= index == 0;\n");
    }
  }
  t->add("    (void)rest;\n    *place = where;\n    return first;\n  }\n};\n");
}

void add_operand(text *t, const mpg_step_program *p, int number, const char *function, int dtype,
                 int reg) {
  t->add("  mpg_%s_few<%s, ", function, type_of(dtype));
  if (p->operands[number].whole)
    t->add("mpg_everywhere");
  else
    t->add("place_%d", number);
  t->add(">(p.data[%d], p.packed[%d] >> %d & 1, begin, count, r%d);\n", number, number / 32,
         number % 32, reg);
}

/* Of an operand of a BINARY, at k. */
void add_side(text *t, const mpg_step *s, bool fixed, int reg) {
  if (fixed)
    t->add("p.constants[%d]", s->constant);
  else
    t->add("r%d[k]", reg);
}

/* Everything behind the includes. */
void generate(text *t, const mpg_step_program *p, const char *name) {
  t->add(
      "namespace of_%s {\nstruct arguments {\n  void *data[%d];\n  int64_t count;\n  uint32_t "
      "packed[4];\n  float constants[%d];\n};\n",
      name, p->num_operands, p->num_constants ? p->num_constants : 1);
  for (int i = 0; i < p->num_operands; i++)
    if (!p->operands[i].whole) add_place(t, p, i);
  t->add("__device__ __forceinline__ void run(const arguments &p, int64_t begin, int count) {\n");
  for (int i = 0; i < p->num_registers; i++) t->add("  float r%d[MPG_GROUP_ELEMENTS];\n", i);
  for (int i = 0; i < p->num_steps; i++) {
    const mpg_step *s = &p->steps[i];
    if (s->kind == MPG_STEP_LOAD) {
      add_operand(t, p, s->a, "load", s->dtype, s->to);
    } else if (s->kind == MPG_STEP_STORE) {
      add_operand(t, p, s->b, "store", s->dtype, s->a);
    } else {
      t->add(
          "#pragma unroll\n  for (int k = 0; k < MPG_GROUP_ELEMENTS; k++) r%d[k] = "
          "mpg_rounded<%s>(",
          s->to, type_of(s->dtype));
      if (s->kind == MPG_STEP_UNARY) {
        t->add("mpg_unary::%s::at(r%d[k], p.constants + %d)", unary_names[s->row], s->a,
               s->constant);
      } else if (s->kind == MPG_STEP_BINARY) {
        t->add("mpg_binary::%s::at(", binary_names[s->row]);
        add_side(t, s, s->fixed == MPG_STEP_FIXED_A, s->a);
        t->add(", ");
        add_side(t, s, s->fixed == MPG_STEP_FIXED_B, s->b);
        t->add(")");
      } else {
        t->add("r%d[k]", s->a);
      }
      t->add(");\n");
    }
  }
  t->add("}\n} // namespace of_%s\n", name);
  t->add(
      "extern \"C\" __global__ void __launch_bounds__(%d) %s(const __grid_constant__ "
      "of_%s::arguments p) {\n"
      "  int64_t begin = ((int64_t)blockIdx.x * %d + threadIdx.x) * MPG_GROUP_ELEMENTS;\n"
      "  if (begin >= p.count) return;\n"
      "  of_%s::run(p, begin, p.count - begin < MPG_GROUP_ELEMENTS ? (int)(p.count - begin) : "
      "(int)MPG_GROUP_ELEMENTS);\n}\n",
      MPG_CUDA_THREADS, name, name, MPG_CUDA_THREADS, name);
  t->add(
      "#ifdef HOSTCUDA\nextern \"C\" __attribute__((visibility(\"default\"))) void %s_run(const "
      "void *p) { %s(*(const of_%s::arguments *)p); }\n"
      "extern \"C\" __attribute__((visibility(\"default\"))) const size_t %s_size = "
      "sizeof(of_%s::arguments);\n#endif\n",
      name, name, name, name, name);
}

/* --- What was made ---------------------------------------------------------------------------- */
struct made { /* one text */
  made *next;
  uint64_t hash;
  unsigned char *key; /* owned */
  size_t size;
  const void *kernel; /* NULL: it could not be made */
};

struct functions {
  MPG_NVRTC_FUNCTIONS(MPG_CUDA_FUNCTION)
};

enum { BUCKETS = 1024 };
struct { /* under the mutex */
  pthread_mutex_t mutex;
  int state; /* 0: not looked yet; 1: there; -1: not to be had, or turned off */
  functions nvrtc;
  made *buckets[BUCKETS];
  bool warned, dumps;
} specialised = {PTHREAD_MUTEX_INITIALIZER, 0, {}, {}, false, false};

/* What the text depends on, as bytes. */
size_t write_key(const mpg_step_program *p, unsigned char *key) {
  bool whole = true;
  size_t size = 0;
  auto add = [&](const void *data, size_t bytes) {
    memcpy(key + size, data, bytes);
    size += bytes;
  };
  for (int i = 0; i < p->num_operands; i++) whole &= p->operands[i].whole;
  int counts[] = {p->num_steps, p->num_operands, p->num_constants, p->num_registers, whole};
  add(counts, sizeof counts);
  add(p->steps, (size_t)p->num_steps * sizeof *p->steps);
  for (int i = 0; i < p->num_operands; i++) {
    uint32_t lies[] = {p->operands[i].whole ? 0 : p->operands[i].varying, p->operands[i].dtype,
                       p->operands[i].whole};
    add(lies, sizeof lies);
  }
  if (!whole) add(p->dims, (size_t)p->ndim * sizeof *p->dims);
  return size;
}
enum {
  MOST_STEPS = MPG_FUSED_MAX_MEMBERS + 2 * MPG_FUSED_MAX_VALUES,
  MOST_KEY = 64 + MOST_STEPS * sizeof(mpg_step) + MPG_FUSED_MAX_VALUES * 12 + MPG_MAX_NDIM * 8
};

uint64_t hash_of(const unsigned char *key, size_t size) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (size_t i = 0; i < size; i++) hash = (hash ^ key[i]) * 0x100000001b3u;
  return hash;
}

void warn(const char *name, const char *why) {
  if (!specialised.warned)
    fprintf(stderr,
            "mpgluon: the fused group %s could not be compiled by NVRTC, so it is interpreted, "
            "slower, as others may be: %.600s\n",
            name, why);
  specialised.warned = true;
}

void look_for_nvrtc() {
  const char *setting = getenv("MPGLUON_CUDA_NVRTC"), *folder = getenv("MPGLUON_CUDA_GROUPS");
  specialised.state = -1;
  specialised.dumps = folder && *folder;
  if (setting && !strcmp(setting, "0")) return;
  static const char *const names[] = {MPG_NVRTC_FUNCTIONS(MPG_CUDA_FUNCTION_NAME)};
  if (mpg_cuda_library_functions(MPG_CUDA_NVRTC, names, sizeof names / sizeof *names,
                                 &specialised.nvrtc) != MPG_OK)
    return;
  specialised.state = 1;
}

void write_dump(const char *name, const text *t) {
  const char *folder = getenv("MPGLUON_CUDA_GROUPS");
  char path[1024];
  if (!folder || !*folder) return;
  snprintf(path, sizeof path, "%s/%s.cu", folder, name);
  FILE *file = fopen(path, "w");
  if (!file) return; /* as MPGLUON_DUMP: passed over */
  fwrite(t->data, 1, t->length, file);
  fclose(file);
}

/* The kernel of a text, or NULL. */
const void *compile(const text *t, const char *name) {
  const functions *nvrtc = &specialised.nvrtc;
  mpg_nvrtc_program_handle program = NULL;
  int headers = 0, card = 0, major = 9, minor = 0;
  while (mpg_cuda_source_names[headers]) headers++;
  cudaGetDevice(&card);
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, card);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, card);
  char architecture[40];
  snprintf(architecture, sizeof architecture, "--gpu-architecture=sm_%d%d", major, minor);
  const char *options[] = {architecture, "--fmad=false", "--std=c++17", "-default-device"};
  mpg_nvrtc_result result = nvrtc->nvrtcCreateProgram(&program, t->data, name, headers,
                                                      mpg_cuda_source_texts, mpg_cuda_source_names);
  if (result == 0)
    result = nvrtc->nvrtcCompileProgram(program, sizeof options / sizeof *options, options);
  size_t size = 0;
  char *code = NULL;
  if (result == 0) result = nvrtc->nvrtcGetCUBINSize(program, &size);
  if (result == 0 && (code = (char *)mpg_malloc(size)))
    result = nvrtc->nvrtcGetCUBIN(program, code);
  if (result != 0) {
    size_t length = 0;
    char *log = program && nvrtc->nvrtcGetProgramLogSize(program, &length) == 0
                    ? (char *)mpg_malloc(length + 1)
                    : NULL;
    if (log && nvrtc->nvrtcGetProgramLog(program, log) == 0)
      warn(name, log);
    else
      warn(name, nvrtc->nvrtcGetErrorString(result));
    mpg_free(log);
  }
  if (program) nvrtc->nvrtcDestroyProgram(&program);
  const void *kernel = NULL;
#if CUDART_VERSION >= 12080
  if (result == 0 && code) {
    cudaLibrary_t library;
    cudaKernel_t found;
    cudaError_t error = cudaLibraryLoadData(&library, code, NULL, NULL, 0, NULL, NULL, 0);
    if (error == cudaSuccess) error = cudaLibraryGetKernel(&found, library, name);
    if (error == cudaSuccess)
      kernel = (const void *)found;
    else
      warn(name, cudaGetErrorString(error));
    cudaGetLastError();
  }
#endif
  mpg_free(code);
  return kernel;
}

/* The entry of a key, made where there is none. NULL: no memory. */
made *find(const mpg_step_program *p, const unsigned char *key, size_t size) {
  uint64_t hash = hash_of(key, size);
  made **at = &specialised.buckets[hash % BUCKETS];
  for (made *m = *at; m; m = m->next)
    if (m->hash == hash && m->size == size && !memcmp(m->key, key, size)) return m;
  made *m = (made *)mpg_calloc(1, sizeof *m);
  unsigned char *copy = (unsigned char *)mpg_malloc(size);
  if (!m || !copy) {
    mpg_free(m);
    mpg_free(copy);
    return NULL;
  }
  memcpy(copy, key, size);
  char name[40];
  snprintf(name, sizeof name, "mpg_group_%016llx", (unsigned long long)hash);
  text t = {};
  t.add("#include \"kernels/cuda/fusion/generated.h\"\n");
  generate(&t, p, name);
  if (!t.failed) {
    write_dump(name, &t);
    if (specialised.state > 0) m->kernel = compile(&t, name);
  }
  mpg_free(t.data);
  m->hash = hash;
  m->key = copy;
  m->size = size;
  m->next = *at;
  return *at = m;
}

} // namespace

extern "C" mpg_status mpg_cuda_run_specialised(const mpg_kernel_call *call,
                                               const mpg_step_program *p, bool *done) {
  unsigned char key[MOST_KEY];
  union {
    uint64_t aligned;
    unsigned char bytes[MPG_FUSED_MAX_VALUES * 8 + 8 + 16 + 3 * MPG_FUSED_MAX_MEMBERS * 4];
  } arguments;
  *done = false;
  if (!p->count) return MPG_OK;
  pthread_mutex_lock(&specialised.mutex);
  if (!specialised.state) look_for_nvrtc();
  const made *m =
      specialised.state > 0 || specialised.dumps ? find(p, key, write_key(p, key)) : NULL;
  pthread_mutex_unlock(&specialised.mutex);
  if (!m || !m->kernel) return MPG_OK;
  unsigned char *to = arguments.bytes;
  uint32_t packed[4] = {};
  for (int i = 0; i < p->num_operands; i++, to += sizeof(void *)) {
    memcpy(to, &p->operands[i].data, sizeof(void *));
    packed[i / 32] |= (uint32_t)p->operands[i].packed << i % 32;
  }
  memcpy(to, &p->count, sizeof p->count);
  memcpy(to + 8, packed, sizeof packed);
  memcpy(to + 24, p->constants, (size_t)p->num_constants * sizeof(float));
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(mpg_cuda_blocks(p->count, (int64_t)MPG_CUDA_THREADS * MPG_GROUP_ELEMENTS));
  config.blockDim = dim3(MPG_CUDA_THREADS);
  config.stream = (cudaStream_t)call->stream;
  void *pointers[] = {arguments.bytes};
  *done = true;
  return mpg_cuda_check(cudaLaunchKernelExC(&config, m->kernel, pointers), "a kernel launch");
}
