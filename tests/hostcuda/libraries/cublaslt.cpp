// Test-only: emulates cuBLASLt on the host. Implements kernels/cuda/vendor/cublaslt.h with plain
// loops, in stream order. It rejects the same calls as cuBLASLt (a bias for float64). It aborts if
// addresses, sizes or workspaces violate the heuristics' preferences. It overwrites all of the
// workspace that it requests.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "cuda_runtime.h"
#include "kernels/common/half.h"
#include "kernels/cuda/vendor/cublaslt.h"

struct mpg_cublaslt_desc {
  int compute, scale, op_a = MPG_CUBLAS_OP_N, op_b = MPG_CUBLAS_OP_N;
  uint32_t epilogue = 1;
  const void *bias = nullptr;
};
struct mpg_cublaslt_layout {
  int type;
  uint64_t rows, columns;
  int64_t ld, step = 0;
  int32_t count = 1;
};
struct mpg_cublaslt_preference {
  uint64_t workspace = 0;
  uint32_t schemes = 7, alignment[4] = {256, 256, 256, 256};
};
struct cublasLtContext {
  int device;
};

namespace {

#define EXPORT extern "C" __attribute__((visibility("default")))

std::atomic<int> alive; // live descriptors and handles
struct report {
  ~report() { // at process exit
    if (getenv("HOSTCUDA_REPORT")) fprintf(stderr, "cublasLt stand-in: %d left\n", alive.load());
  }
} at_end;

[[noreturn]] void wrong(const char *what) {
  fprintf(stderr, "cublasLt stand-in: %s\n", what);
  abort();
}

struct choice { // contents of a cublasLtMatmulAlgo_t
  uint64_t magic, workspace, alignment[4], unused[2];
};
const uint64_t MAGIC = 0x6d70676c7500;

double load(int type, const void *data, int64_t i) {
  switch (type) {
    case MPG_CUDA_R_64F: return ((const double *)data)[i];
    case MPG_CUDA_R_32F: return ((const float *)data)[i];
    case MPG_CUDA_R_16F: return mpg_half_to_float(((const uint16_t *)data)[i]);
    default: return mpg_bfloat16_to_float(((const uint16_t *)data)[i]);
  }
}
void store(int type, void *data, int64_t i, double value) {
  switch (type) {
    case MPG_CUDA_R_64F: ((double *)data)[i] = value; break;
    case MPG_CUDA_R_32F: ((float *)data)[i] = (float)value; break;
    case MPG_CUDA_R_16F: ((uint16_t *)data)[i] = mpg_float_to_half((float)value); break;
    default: ((uint16_t *)data)[i] = mpg_float_to_bfloat16((float)value); break;
  }
}
float tf32(float x) { // rounds to TF32: 10 mantissa bits
  uint32_t bits;
  memcpy(&bits, &x, 4);
  if ((bits & 0x7f800000u) != 0x7f800000u) bits = (bits + 0x1000u) & ~0x1fffu;
  memcpy(&x, &bits, 4);
  return x;
}

struct work {
  mpg_cublaslt_desc desc;
  mpg_cublaslt_layout a, b, c;
  double alpha, beta;
  const void *left, *right, *before;
  void *out, *workspace;
  size_t workspace_bytes;
};

// Computes c (m, n) = alpha op(a) op(b) + beta c0 + bias. Matrices are column-major.
void multiply(const void *opaque) {
  const work *w = (const work *)opaque;
  if (w->workspace_bytes) memset(w->workspace, 0xdd, w->workspace_bytes);
  bool ta = w->desc.op_a == MPG_CUBLAS_OP_T, tb = w->desc.op_b == MPG_CUBLAS_OP_T,
       rounds = w->desc.compute == MPG_CUBLAS_COMPUTE_32F_FAST_TF32;
  int64_t m = (int64_t)w->c.rows, n = (int64_t)w->c.columns,
          k = (int64_t)(ta ? w->a.rows : w->a.columns);
  std::vector<double> left((size_t)(m * k)), sums((size_t)m);
  for (int64_t batch = 0; batch < w->c.count; batch++) {
    for (int64_t l = 0; l < k; l++)
      for (int64_t i = 0; i < m; i++) {
        double x =
            load(w->a.type, w->left, batch * w->a.step + (ta ? i * w->a.ld + l : l * w->a.ld + i));
        left[(size_t)(l * m + i)] = rounds ? tf32((float)x) : x;
      }
    for (int64_t j = 0; j < n; j++) {
      std::fill(sums.begin(), sums.end(), 0.0);
      for (int64_t l = 0; l < k; l++) {
        double y =
            load(w->b.type, w->right, batch * w->b.step + (tb ? l * w->b.ld + j : j * w->b.ld + l));
        if (rounds) y = tf32((float)y);
        const double *x = &left[(size_t)(l * m)];
        for (int64_t i = 0; i < m; i++) sums[(size_t)i] += x[i] * y;
      }
      for (int64_t i = 0; i < m; i++) {
        int64_t at = batch * w->c.step + j * w->c.ld + i;
        double value = w->alpha * sums[(size_t)i];
        if (w->beta != 0) value += w->beta * load(w->c.type, w->before, at);
        if (w->desc.epilogue == MPG_CUBLASLT_EPILOGUE_BIAS)
          value += load(w->c.type, w->desc.bias, i);
        store(w->c.type, w->out, at, value);
      }
    }
  }
}

bool fits(const mpg_cublaslt_layout *layout, bool transposed, uint64_t rows, uint64_t columns,
          int32_t count) {
  return (transposed ? layout->columns == rows && layout->rows == columns
                     : layout->rows == rows && layout->columns == columns) &&
         layout->count == count && layout->ld >= (int64_t)layout->rows && layout->rows > 0 &&
         layout->columns > 0;
}

int64_t size_of(int type) { return type == MPG_CUDA_R_64F ? 8 : type == MPG_CUDA_R_32F ? 4 : 2; }
bool aligned(const void *address, uint64_t alignment) {
  return (uintptr_t)address % alignment == 0;
}

} // namespace

EXPORT cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) {
  int device;
  cudaGetDevice(&device);
  *handle = new cublasLtContext{device};
  alive++;
  return MPG_CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete handle;
  alive--;
  return MPG_CUBLAS_STATUS_SUCCESS;
}
EXPORT const char *cublasLtGetStatusName(cublasStatus_t status) {
  switch (status) {
    case MPG_CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case MPG_CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case MPG_CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
    default: return "CUBLAS_STATUS_INTERNAL_ERROR";
  }
}

EXPORT cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc,
                                               cublasComputeType_t compute,
                                               mpg_cublaslt_type scale) {
  *desc = new mpg_cublaslt_desc;
  alive++;
  (*desc)->compute = compute;
  (*desc)->scale = scale;
  return MPG_CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  delete desc;
  alive--;
  return MPG_CUBLAS_STATUS_SUCCESS;
}
#define SET(attribute, field)                                         \
  case attribute:                                                     \
    if (size != sizeof field) return MPG_CUBLAS_STATUS_INVALID_VALUE; \
    memcpy(&field, value, size);                                      \
    return MPG_CUBLAS_STATUS_SUCCESS;
EXPORT cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                                     cublasLtMatmulDescAttributes_t attribute,
                                                     const void *value, size_t size) {
  switch (attribute) {
    SET(MPG_CUBLASLT_MATMUL_DESC_TRANSA, desc->op_a)
    SET(MPG_CUBLASLT_MATMUL_DESC_TRANSB, desc->op_b)
    SET(MPG_CUBLASLT_MATMUL_DESC_EPILOGUE, desc->epilogue)
    SET(MPG_CUBLASLT_MATMUL_DESC_BIAS_POINTER, desc->bias)
  }
  return MPG_CUBLAS_STATUS_INVALID_VALUE;
}

EXPORT cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout,
                                                 mpg_cublaslt_type type, uint64_t rows,
                                                 uint64_t columns, int64_t ld) {
  *layout = new mpg_cublaslt_layout;
  alive++;
  (*layout)->type = type;
  (*layout)->rows = rows;
  (*layout)->columns = columns;
  (*layout)->ld = ld;
  return MPG_CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete layout;
  alive--;
  return MPG_CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                       cublasLtMatrixLayoutAttribute_t attribute,
                                                       const void *value, size_t size) {
  switch (attribute) {
    SET(MPG_CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, layout->count)
    SET(MPG_CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, layout->step)
  }
  return MPG_CUBLAS_STATUS_INVALID_VALUE;
}

EXPORT cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference) {
  *preference = new mpg_cublaslt_preference;
  alive++;
  return MPG_CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete preference;
  alive--;
  return MPG_CUBLAS_STATUS_SUCCESS;
}
EXPORT cublasStatus_t cublasLtMatmulPreferenceSetAttribute(
    cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute,
    const void *value, size_t size) {
  switch (attribute) {
    SET(MPG_CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, preference->workspace)
    SET(MPG_CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, preference->schemes)
    SET(MPG_CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, preference->alignment[0])
    SET(MPG_CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, preference->alignment[1])
    SET(MPG_CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, preference->alignment[2])
    SET(MPG_CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, preference->alignment[3])
  }
  return MPG_CUBLAS_STATUS_INVALID_VALUE;
}

EXPORT cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
    cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference,
    int wanted, cublasLtMatmulHeuristicResult_t *results, int *found) {
  *found = 0;
  bool ta = desc->op_a == MPG_CUBLAS_OP_T, wide = c->type == MPG_CUDA_R_64F,
       biased = desc->epilogue == MPG_CUBLASLT_EPILOGUE_BIAS;
  uint64_t k = ta ? a->rows : a->columns;
  bool widened = (a->type == MPG_CUDA_R_16F || a->type == MPG_CUDA_R_16BF) &&
                 c->type == MPG_CUDA_R_32F && !biased; // 16-bit operands, float result
  bool types =
      a->type == b->type && (a->type == c->type || widened) && d->type == c->type &&
      desc->scale == (wide ? MPG_CUDA_R_64F : MPG_CUDA_R_32F) &&
      (wide ? desc->compute == MPG_CUBLAS_COMPUTE_64F
            : desc->compute == MPG_CUBLAS_COMPUTE_32F ||
                  (desc->compute == MPG_CUBLAS_COMPUTE_32F_FAST_TF32 && c->type == MPG_CUDA_R_32F));
  if (wanted < 1 || !types || !fits(a, ta, c->rows, k, c->count) ||
      !fits(b, desc->op_b == MPG_CUBLAS_OP_T, k, c->columns, c->count) ||
      !fits(d, false, c->rows, c->columns, c->count) ||
      !fits(c, false, c->rows, c->columns, c->count) || (biased && !desc->bias))
    return MPG_CUBLAS_STATUS_INVALID_VALUE;
  if (biased && wide) return MPG_CUBLAS_STATUS_NOT_SUPPORTED;
  memset(results, 0, sizeof *results);
  uint64_t workspace = k >= 64 ? 4 * c->rows * c->columns : 0; // as for partial sums over k
  choice chosen = {MAGIC, workspace <= preference->workspace ? workspace : 0, {}, {}};
  for (int i = 0; i < 4; i++) chosen.alignment[i] = preference->alignment[i];
  memcpy(&results->algo, &chosen, sizeof chosen);
  results->workspaceSize = chosen.workspace;
  *found = 1;
  return MPG_CUBLAS_STATUS_SUCCESS;
}

EXPORT cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                     const void *alpha, const void *a,
                                     cublasLtMatrixLayout_t a_layout, const void *b,
                                     cublasLtMatrixLayout_t b_layout, const void *beta,
                                     const void *c, cublasLtMatrixLayout_t c_layout, void *d,
                                     cublasLtMatrixLayout_t d_layout,
                                     const cublasLtMatmulAlgo_t *algo, void *workspace,
                                     size_t workspace_bytes, cudaStream_t stream) {
  choice chosen;
  memcpy(&chosen, algo, sizeof chosen);
  int device;
  cudaGetDevice(&device);
  if (chosen.magic != MAGIC) wrong("this algorithm was not chosen by the heuristics");
  if (device != handle->device) wrong("the handle is another card's");
  const struct {
    const void *first;
    cublasLtMatrixLayout_t layout;
  } operands[] = {{a, a_layout}, {b, b_layout}, {c, c_layout}, {d, d_layout}};
  for (int i = 0; i < 4; i++)
    for (int64_t batch = 0; batch < operands[i].layout->count; batch++)
      if (!aligned((const char *)operands[i].first +
                       batch * operands[i].layout->step * size_of(operands[i].layout->type),
                   chosen.alignment[i]))
        wrong("an operand is not aligned as the heuristics were told");
  if (desc->epilogue == MPG_CUBLASLT_EPILOGUE_BIAS && !aligned(desc->bias, 16))
    wrong("the bias is not aligned");
  if (workspace_bytes < chosen.workspace || (chosen.workspace && !aligned(workspace, 256)))
    wrong("the workspace is too small or not aligned to 256 bytes");
  bool wide = desc->scale == MPG_CUDA_R_64F;
  double first = wide ? *(const double *)alpha : *(const float *)alpha,
         second = wide ? *(const double *)beta : *(const float *)beta;
  if (d_layout->ld != c_layout->ld || d_layout->step != c_layout->step)
    return MPG_CUBLAS_STATUS_NOT_SUPPORTED;
  work w = {*desc, *a_layout, *b_layout, *c_layout, first,     second,
            a,     b,         c,         d,         workspace, (size_t)chosen.workspace};
  return hostcuda_put(stream, multiply, &w, sizeof w) == cudaSuccess ? MPG_CUBLAS_STATUS_SUCCESS
                                                                     : 13;
}

// Returns the major (which = 0), minor or patch version.
extern "C" __attribute__((visibility("default"))) int cublasLtGetProperty(int which, int *value) {
  *value = which ? 0 : 13;
  return 0;
}
