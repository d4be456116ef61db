/* Generates C++ for fused groups and compiles it with NVRTC. */
#include "kernels/cuda/fusion/generated.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/cuda.h"
extern "C" {
#include "kernels/common/formula.h"
#include "kernels/common/reduce.h"
#include "kernels/cuda/vendor/nvrtc.h"
#include "kernels/cuda/fusion/specialise.h"
}

namespace {

/* --- Source text ------------------------------------------------------------------------------ */
struct text {
  char *data;
  size_t length, capacity;
  bool failed; /* out of memory */

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

const char *const formula_names[MPG_FORMULA_COUNT] = {
    NULL,
    NULL,
#define FLOAT_ROWS(name, kind, expression_f, expression_d) #name,
#include "kernels/common/unary.def"
    NULL,
#define FLOAT_ROWS(name, kind, price, expression_f, expression_d) #name,
#include "kernels/common/binary.def"
};

const char *type_of(int dtype) {
  switch (dtype) {
    case MPG_FLOAT16: return "mpg_half";
    case MPG_BFLOAT16: return "mpg_bfloat16";
    case MPG_UINT8: return "uint8_t"; /* masks */
    default: return "float";
  }
}

/* Emits the place type (generated.h) of an operand that is broadcast along some dims. */
void add_place(text *t, const mpg_step_program *p, int number) {
  const mpg_step_operand *o = &p->operands[number];
  const char *type = p->count <= 0x7fffffff ? "uint32_t" : "uint64_t";
  t->add(
      "struct place_%d {\n  static const bool whole = false;\n  static __device__ __forceinline__ "
      "bool at(int64_t i, int64_t *place) {\n    %s rest = (%s)i, next, index;\n    int64_t where "
      "= 0;\n    bool first = true;\n",
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

void add_place_name(text *t, const mpg_step_program *p, int number) {
  if (p->operands[number].whole)
    t->add("mpg_everywhere");
  else
    t->add("place_%d", number);
}

/* Emits the end of a load or store: the last template argument and the function's arguments. */
void add_neighbours(text *t, int number, int reg) {
  t->add(", EACH>(p.data[%d], p.packed[%d] >> %d & 1, begin[q], count[q], r%d + q * EACH);\n",
         number, number / 32, number % 32, reg);
}

void add_load(text *t, const mpg_step_program *p, const mpg_step *s) {
  if (p->operands[s->a].by_row) {
    t->add("  {\n    float one = mpg_load_of_row<%s, ", type_of(s->dtype));
    add_place_name(t, p, s->a);
    t->add(">(p.data[%d], begin[0], count[0]);\n    EACH_ELEMENT r%d[k] = one;\n  }\n", s->a,
           s->to);
  } else {
    t->add("  EACH_PACK mpg_load_few<%s, ", type_of(s->dtype));
    add_place_name(t, p, s->a);
    add_neighbours(t, s->a, s->to);
  }
}

void add_store(text *t, const mpg_step_program *p, const mpg_step *s) {
  bool by_row = p->operands[s->b].by_row;
  t->add(by_row ? "  mpg_store_of_row<%s, " : "  EACH_PACK mpg_store_few<%s, ", type_of(s->dtype));
  add_place_name(t, p, s->b);
  if (by_row)
    t->add(">(p.data[%d], begin[0], count[0], r%d[0]);\n", s->b, s->a);
  else
    add_neighbours(t, s->b, s->a);
}

void add_draw(text *t, const mpg_step_program *p, const mpg_step *s) {
  t->add("  EACH_PACK mpg_draw_few<");
  add_place_name(t, p, s->a);
  t->add(", EACH>(p.keys[%d], p.constants[%d], begin[q], count[q], r%d + q * EACH);\n", s->row,
         s->constant, s->to);
}

void add_reduce(text *t, const mpg_step_program *p, const mpg_step *s) {
  const char *neutral = s->row == MPG_ADD        ? "0.0f"
                        : s->row == MPG_SMALLEST ? "INFINITY"
                                                 : "-INFINITY",
             *combine = s->row == MPG_ADD        ? "mpg_plus"
                        : s->row == MPG_SMALLEST ? "mpg_smaller"
                        : s->row == MPG_LARGEST  ? "mpg_larger"
                                                 : "mpg_larger_number";
  t->add(
      "  {\n    float row[SIZE];\n    EACH_ELEMENT row[k] = k %% EACH < count[k / EACH] ? r%d[k] : "
      "%s;\n    float result = lanes::fold(row, %s, %s());\n",
      s->a, neutral, neutral, combine);
  if (s->b) t->add("    result = result / %d.0f;\n", p->row);
  t->add("    result = mpg_rounded<%s>(result);\n    EACH_ELEMENT r%d[k] = result;\n  }\n",
         type_of(s->dtype), s->to);
}

void add_share(text *t, const mpg_step *s) {
  t->add("  EACH_ELEMENT share%d[k] += k %% EACH < count[k / EACH] ? r%d[k] : 0.0f;\n", s->row,
         s->a);
}

/* Emits element k of an operand of a BINARY step. The operand is a constant if `fixed`, else a
 * register. */
void add_side(text *t, const mpg_step *s, bool fixed, int reg) {
  if (fixed)
    t->add("p.constants[%d]", s->constant);
  else
    t->add("r%d[k]", reg);
}

/* Emits the code that runs a group on rows. A thread processes part of one row, or of several rows
 * if it accumulates partial sums. Threads beyond the last row run with length 0, since reductions
 * need all threads of the block. */
void add_rows(text *t, const mpg_step_program *p, const char *name) {
  for (int i = 0; i < p->num_shares; i++)
    t->add(
        "  float share%d[SIZE];\n#pragma unroll\n  for (int k = 0; k < SIZE; k++) share%d[k] = "
        "0.0f;\n",
        i, i);
  t->add(p->num_shares
             ? "#pragma unroll 1\n  for (int i = 0; i < (int)p.block_rows; i += lanes::ROWS) {\n"
               "  int64_t row = blockIdx.x * p.block_rows + i + lanes::row();\n"
             : "  int64_t row = (int64_t)blockIdx.x * lanes::ROWS + lanes::row();\n");
  t->add(
      "  int length = row < p.count / %d ? %d : 0;\n"
      "#pragma unroll\n  for (int q = 0; q < PACKS; q++) {\n"
      "    begin[q] = row * %d + lanes::at(q);\n"
      "    count[q] = length - lanes::at(q);\n  }\n"
      "  of_%s::run(p, begin, count",
      p->row, p->row, p->row, name);
  for (int i = 0; i < p->num_shares; i++) t->add(", share%d", i);
  t->add(");\n");
  if (!p->num_shares) return;
  t->add("  }\n");
  for (int i = 0; i < p->num_shares; i++)
    t->add(
        "  lanes::put_columns(share%d, %d, p.shares + ((%d * (int64_t)gridDim.x + blockIdx.x) * 2 "
        "+ %d) * %d);\n",
        i, p->row, i / 2, i % 2, p->row);
}

/* Emits everything after the includes: the arguments, the place types, a function that runs the
 * program's steps, and the kernel that calls it. */
void generate(text *t, const mpg_step_program *p, const char *name) {
  t->add(
      "namespace of_%s {\nstruct arguments {\n  void *data[%d];\n  mpg_cuda_key keys[%d];\n  "
      "float *shares;\n  int64_t block_rows, count;\n  uint32_t packed[4];\n  float "
      "constants[%d];\n};\n",
      name, p->num_operands, p->num_draws ? p->num_draws : 1,
      p->num_constants ? p->num_constants : 1);
  for (int i = 0; i < p->num_operands; i++)
    if (!p->operands[i].whole) add_place(t, p, i);
  t->add(
      "enum { EACH = %d, PACKS = %d, SIZE = EACH * PACKS };\ntypedef mpg_lanes<%d, PACKS, EACH> "
      "lanes;\n"
      "#define EACH_PACK _Pragma(\"unroll\") for (int q = 0; q < PACKS; q++)\n"
      "#define EACH_ELEMENT _Pragma(\"unroll\") for (int k = 0; k < SIZE; k++)\n"
      "__device__ __forceinline__ void run(const arguments &p, const int64_t *begin, const int "
      "*count",
      p->each, p->packs, p->lanes);
  for (int i = 0; i < p->num_shares; i++) t->add(", float (&share%d)[SIZE]", i);
  t->add(") {\n");
  for (int i = 0; i < p->num_registers; i++) t->add("  float r%d[SIZE];\n", i);
  for (int i = 0; i < p->num_steps; i++) {
    const mpg_step *s = &p->steps[i];
    if (s->kind == MPG_STEP_LOAD) {
      add_load(t, p, s);
    } else if (s->kind == MPG_STEP_STORE) {
      add_store(t, p, s);
    } else if (s->kind == MPG_STEP_DRAW) {
      add_draw(t, p, s);
    } else if (s->kind == MPG_STEP_REDUCE) {
      add_reduce(t, p, s);
    } else if (s->kind == MPG_STEP_SHARE) {
      add_share(t, s);
    } else {
      t->add("  EACH_ELEMENT r%d[k] = mpg_rounded<%s>(", s->to, type_of(s->dtype));
      if (s->kind == MPG_STEP_UNARY) {
        t->add("mpg_unary::%s::at(r%d[k], p.constants + %d)", formula_names[s->row], s->a,
               s->constant);
      } else if (s->kind == MPG_STEP_BINARY) {
        t->add("mpg_binary::%s::at(", formula_names[s->row]);
        add_side(t, s, s->fixed == MPG_STEP_FIXED_A, s->a);
        t->add(", ");
        add_side(t, s, s->fixed == MPG_STEP_FIXED_B, s->b);
        t->add(")");
      } else if (s->kind == MPG_STEP_DROP) {
        t->add("r%d[k] != 0.0f ? r%d[k] * p.constants[%d] : 0.0f", s->b, s->a, s->constant);
      } else if (s->kind == MPG_STEP_EXP || s->kind == MPG_STEP_LOG) {
        t->add("%s(r%d[k])", s->kind == MPG_STEP_EXP ? "expf" : "logf", s->a);
      } else {
        t->add("r%d[k]", s->a);
      }
      t->add(");\n");
    }
  }
  t->add("}\n#undef EACH_PACK\n#undef EACH_ELEMENT\n} // namespace of_%s\n", name);
  /* Partial sums need many registers. Two blocks per multiprocessor with some register spills are
   * faster than one block without spills. */
  t->add(
      "extern \"C\" __global__ void __launch_bounds__(%d, %d) %s(const __grid_constant__ "
      "of_%s::arguments p) {\n  using namespace of_%s;\n  int64_t begin[PACKS];\n  int "
      "count[PACKS];\n",
      MPG_CUDA_THREADS, p->num_shares ? 2 : 1, name, name, name);
  if (p->row)
    add_rows(t, p, name);
  else
    t->add(
        "  begin[0] = ((int64_t)blockIdx.x * %d + threadIdx.x) * EACH;\n"
        "  if (begin[0] >= p.count) return;\n"
        "  count[0] = p.count - begin[0] < EACH ? (int)(p.count - begin[0]) : (int)EACH;\n"
        "  of_%s::run(p, begin, count);\n",
        MPG_CUDA_THREADS, name);
  t->add("}\n");
  t->add(
      "#ifdef HOSTCUDA\nextern \"C\" void %s_run(const "
      "void *p) { %s(*(const of_%s::arguments *)p); }\n"
      "extern \"C\" const size_t %s_size = "
      "sizeof(of_%s::arguments);\n#endif\n",
      name, name, name, name, name);
}

/* --- Cache of generated kernels --------------------------------------------------------------- */
/* Cached kernel, linked in a bucket of the hash table. */
struct made {
  made *next;
  uint64_t hash;
  unsigned char *key; /* owned */
  size_t size;
  char *text; /* owned; NULL unless groups are dumped */
  const void *kernel;
};

enum { BUCKETS = 1024 };
/* Hash table of cached kernels, guarded by the mutex. */
struct {
  pthread_mutex_t mutex;
  bool looked, there; /* looked: `there` is valid; there: NVRTC exists and supports the GPU */
  made *buckets[BUCKETS];
} specialised = {PTHREAD_MUTEX_INITIALIZER, false, false, {}};

/* Returns the compute capability of the current GPU as an integer, such as 90 for 9.0. The caller
 * holds the mutex. */
int compute_capability() {
  static int known[64];
  int card = 0, major = 0, minor = 0;
  cudaGetDevice(&card);
  if (card >= 0 && card < 64 && known[card]) return known[card];
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, card);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, card);
  if (card >= 0 && card < 64) known[card] = 10 * major + minor;
  return 10 * major + minor;
}

/* Writes the cache key of a kernel: the compute capability, and all parts of the program that
 * affect the generated text. Returns the key's size. */
size_t write_key(const mpg_step_program *p, unsigned char *key) {
  bool whole = true;
  size_t size = 0;
  auto add = [&](const void *data, size_t bytes) {
    memcpy(key + size, data, bytes);
    size += bytes;
  };
  for (int i = 0; i < p->num_operands; i++) whole &= p->operands[i].whole;
  int counts[] = {compute_capability(),
                  p->num_steps,
                  p->num_operands,
                  p->num_constants,
                  p->num_registers,
                  p->num_draws,
                  p->num_shares,
                  p->row,
                  p->each,
                  p->packs,
                  p->lanes,
                  whole};
  add(counts, sizeof counts);
  add(p->steps, (size_t)p->num_steps * sizeof *p->steps);
  for (int i = 0; i < p->num_operands; i++) {
    uint32_t lies[] = {p->operands[i].whole ? 0 : p->operands[i].varying, p->operands[i].dtype,
                       p->operands[i].whole, p->operands[i].by_row};
    add(lies, sizeof lies);
  }
  if (!whole) add(p->dims, (size_t)p->ndim * sizeof *p->dims);
  return size;
}
enum {
  MOST_KEY = 64 + MPG_STEP_MAX_STEPS * sizeof(mpg_step) + MPG_FUSED_MAX_VALUES * 16 +
  MPG_MAX_NDIM * 8
};

uint64_t hash_of(const unsigned char *key, size_t size) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (size_t i = 0; i < size; i++) hash = (hash ^ key[i]) * 0x100000001b3u;
  return hash;
}

/* Returns the folder for dumps of generated kernels, or NULL if dumps are disabled. */
const char *dump_folder() {
  const char *folder = getenv("MPGLUON_CUDA_GROUPS");
  return folder && *folder ? folder : NULL;
}

void write_dump(const char *name, const text *t) {
  const char *folder = dump_folder();
  char path[1024];
  if (!folder) return;
  snprintf(path, sizeof path, "%s/%s.cu", folder, name);
  FILE *file = fopen(path, "w");
  if (!file) return; /* errors are ignored, as for MPGLUON_DUMP */
  fwrite(t->data, 1, t->length, file);
  fclose(file);
}

/* Compiles and loads source text. Sets *kernel to its function `name`. */
mpg_status compile(const char *text, const char *name, const void **kernel) {
  static const char *const options[] = {"--fmad=false", "--std=c++17", "-default-device"};
  mpg_nvrtc_source source = {};
  source.text = text;
  source.name = name;
  source.hint = "set MPGLUON_CUDA_NVRTC=0 to disable the fusion of ops";
  while (mpg_cuda_source_names[source.num_headers]) source.num_headers++;
  source.header_texts = mpg_cuda_source_texts;
  source.header_names = mpg_cuda_source_names;
  source.num_options = sizeof options / sizeof *options;
  source.options = options;
  mpg_nvrtc_code code;
  void *library;
  mpg_status status = mpg_nvrtc_build(&source, &code, &library);
  mpg_nvrtc_free(&code);
  return status == MPG_OK ? mpg_nvrtc_kernel(library, name, kernel) : status;
}

/* Checks that NVRTC exists and that the GPU can load its code, by compiling an empty kernel. Runs
 * once per process. */
void look_for_nvrtc() {
  const char *setting = getenv("MPGLUON_CUDA_NVRTC");
  const void *kernel;
  specialised.looked = true;
  if (setting && !strcmp(setting, "0")) return;
  if (mpg_nvrtc_find() != MPG_OK) return;
  text t = {};
  t.add("extern \"C\" __global__ void mpg_probe() {}\n");
  specialised.there = !t.failed && compile(t.data, "mpg_probe", &kernel) == MPG_OK;
  if (!specialised.there)
    fprintf(stderr, "mpgluon: fusion of ops on GPUs is disabled: %s\n", mpg_error_text());
  mpg_free(t.data);
}

text text_of(const mpg_step_program *p, const char *name) {
  text t = {};
  t.add("#include \"kernels/cuda/fusion/generated.h\"\n");
  generate(&t, p, name);
  return t;
}

/* Checks that a program generates the same text as the cached kernel with the same key. A
 * difference means that write_key omits something. */
mpg_status check_text(const made *m, const mpg_step_program *p, const char *name) {
  text t = text_of(p, name);
  bool same = t.failed || !strcmp(t.data, m->text);
  mpg_free(t.data);
  return same ? MPG_OK
              : mpg_fail(MPG_ERROR, "internal: two fused groups have the same key as %s", name);
}

/* Sets *kernel to the kernel with the given key. Generates and compiles the kernel if it is not
 * cached. */
mpg_status find(const mpg_step_program *p, const unsigned char *key, size_t size,
                const void **kernel) {
  uint64_t hash = hash_of(key, size);
  made **at = &specialised.buckets[hash % BUCKETS];
  char name[40];
  snprintf(name, sizeof name, "mpg_group_%016llx", (unsigned long long)hash);
  for (made *m = *at; m; m = m->next)
    if (m->hash == hash && m->size == size && !memcmp(m->key, key, size)) {
      *kernel = m->kernel;
      return m->text ? check_text(m, p, name) : MPG_OK;
    }
  text t = text_of(p, name);
  if (!t.failed) write_dump(name, &t);
  mpg_status status = t.failed ? mpg_out_of_host_memory(t.length) : compile(t.data, name, kernel);
  made *m = (made *)mpg_malloc(sizeof *m);
  unsigned char *copy = (unsigned char *)mpg_malloc(size);
  if (status != MPG_OK || !m || !copy) { /* not cached, so the next use generates it again */
    mpg_free(m);
    mpg_free(copy);
    mpg_free(t.data);
    return status;
  }
  memcpy(copy, key, size);
  if (!dump_folder()) {
    mpg_free(t.data);
    t.data = NULL;
  }
  *m = {*at, hash, copy, size, t.data, *kernel};
  *at = m;
  return MPG_OK;
}

} // namespace

extern "C" bool mpg_cuda_specialises(void) {
  pthread_mutex_lock(&specialised.mutex);
  if (!specialised.looked) look_for_nvrtc();
  bool there = specialised.there;
  pthread_mutex_unlock(&specialised.mutex);
  return there;
}

extern "C" unsigned mpg_specialised_blocks(const mpg_step_program *p) {
  if (!p->row) return mpg_cuda_blocks(p->count, MPG_CUDA_THREADS * p->each);
  return mpg_cuda_blocks(p->count / p->row,
                         p->num_shares ? p->block_rows : MPG_CUDA_THREADS / p->lanes);
}

extern "C" mpg_status mpg_cuda_run_specialised(const mpg_kernel_call *call,
                                               const mpg_step_program *p) {
  unsigned char key[MOST_KEY];
  union {
    uint64_t aligned;
    unsigned char bytes[MPG_FUSED_MAX_VALUES * 8 + MPG_STEP_MAX_DRAWS * sizeof(mpg_cuda_key) + 40 +
                        MPG_STEP_MAX_CONSTANTS * sizeof(float)];
  } arguments;
  const void *kernel = NULL;
  if (!p->count) return MPG_OK;
  pthread_mutex_lock(&specialised.mutex);
  mpg_status status = find(p, key, write_key(p, key), &kernel);
  pthread_mutex_unlock(&specialised.mutex);
  MPG_TRY(status);
  unsigned char *to = arguments.bytes;
  uint32_t packed[4] = {};
  for (int i = 0; i < p->num_operands; i++, to += sizeof(void *)) {
    memcpy(to, &p->operands[i].data, sizeof(void *));
    packed[i / 32] |= (uint32_t)p->operands[i].packed << i % 32;
  }
  const mpg_fused *fused = (const mpg_fused *)call->params;
  for (int i = 0; i < (p->num_draws ? p->num_draws : 1); i++, to += sizeof(mpg_cuda_key)) {
    mpg_cuda_key key = {};
    if (i < p->num_draws && call->random_at)
      key.at = call->random_at + i;
    else if (i < p->num_draws)
      key.given = fused->keys[i];
    memcpy(to, &key, sizeof key);
  }
  const int64_t sizes[] = {p->block_rows, p->count};
  memcpy(to, &p->shares, sizeof p->shares);
  memcpy(to + 8, sizes, sizeof sizes);
  memcpy(to + 24, packed, sizeof packed);
  memcpy(to + 40, p->constants, (size_t)p->num_constants * sizeof(float));
  cudaLaunchConfig_t config = {};
  int rows = MPG_CUDA_THREADS / p->lanes; /* rows per block */
  config.gridDim = dim3(mpg_specialised_blocks(p));
  config.blockDim = dim3(MPG_CUDA_THREADS);
  config.dynamicSmemBytes = p->num_shares && rows > 1 ? rows * p->row * sizeof(float) : 0;
  config.stream = (cudaStream_t)call->stream;
  void *pointers[] = {arguments.bytes};
  return mpg_cuda_check(cudaLaunchKernelExC(&config, kernel, pointers), "a kernel launch");
}
