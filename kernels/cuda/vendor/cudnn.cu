/* Convolutions as cuDNN graphs. A graph has three tensors and one operation. If there is a bias, a
 * second operation adds the bias to the sums of the first one. These sums are a virtual tensor,
 * which is never stored in memory. The signature of a convolution consists of everything except its
 * addresses. Tensors, operations and the execution plan are created once per signature. */
#include <stdlib.h>

#include "kernels/cuda/cuda.h"
extern "C" {
#include "kernels/cuda/runtime/cache.h"
#include "kernels/cuda/vendor/library.h"
#include "kernels/cuda/vendor/nvrtc.h"
#include "op/layers/convolution.h"
}
#include "kernels/cuda/layers/convolution.h"
#include "kernels/cuda/vendor/cudnn.h"
#include "kernels/cuda/runtime/plans.h"
#include "kernels/cuda/math/product.h"

namespace {

enum { MOST_CONFIGS = 64, MOST_NOTES = 16, LAST_ERROR = 256 };
/* Tensors of a graph; SUM is the result before the bias is added. */
enum { DATA, WEIGHT, OUT, BIAS, SUM, TENSORS, OPERANDS = OUT + 1 };
/* Oldest cuDNN version in which captured work remains valid after its plan is destroyed. With older
 * versions, plans must never be evicted. */
const size_t CAPTURES_KEEP_KERNELS = 92800;
/* Maximum workspace in bytes: the default of MXNet's parameter `workspace`. */
const int64_t WORKSPACE = (int64_t)1 << 30;

struct functions {
  MPG_CUDNN_FUNCTIONS(MPG_CUDA_FUNCTION)
};

/* Cache key of a plan. It must not have padding, since keys are compared as bytes. */
struct signature : mpg_window {
  int64_t direction, dtype, last, batch, channels, filters, groups, bias;
};

} // namespace

struct mpg_cudnn_plan {
  signature key;
  mpg_cudnn_plan *next, *newer, *older;
  cudnnBackendDescriptor_t tensors[TENSORS], convolution, operation, addition, add, graph, config,
      plan; /* plan is NULL if cuDNN does not support the convolution */
  int64_t workspace;
};

namespace {

/* Per-device state. */
struct library {
  functions dnn;
  cudnnHandle_t handle;
  cudaStream_t stream;
  bool tf32, deterministic;
  mpg_plans<mpg_cudnn_plan> plans;
};

mpg_status failed(const mpg_kernel_call *call, const functions *dnn, const char *what,
                  cudnnStatus_t status) {
  char more[LAST_ERROR] = "";
  dnn->cudnnGetLastErrorString(more, sizeof more);
  return mpg_fail(MPG_ERROR, "%s: %s failed: %s%s%s", call->op ? call->op->name : "convolution",
                  what, dnn->cudnnGetErrorString(status), *more ? ": " : "", more);
}

/* True if a status means that cuDNN does not support the call. */
bool unsupported(cudnnStatus_t status) {
  return status >= MPG_CUDNN_STATUS_BAD_PARAM && status < MPG_CUDNN_STATUS_INTERNAL_ERROR;
}

void release(void *contents);

mpg_status make(void **contents) {
  static const char *const names[] = {MPG_CUDNN_FUNCTIONS(MPG_CUDA_FUNCTION_NAME)};
  library *all = (library *)mpg_calloc(1, sizeof *all);
  if (!all) return mpg_out_of_host_memory(sizeof *all);
  mpg_status status =
      mpg_cuda_library_functions(MPG_CUDA_CUDNN, names, sizeof names / sizeof *names, &all->dnn);
  if (status == MPG_OK) status = mpg_cuda_setting("MPGLUON_CUDA_TF32", false, &all->tf32);
  if (status == MPG_OK)
    status = mpg_cuda_setting("MPGLUON_CUDA_DETERMINISTIC", true, &all->deterministic);
  if (status == MPG_OK) {
    mpg_nvrtc_find(); /* opens NVRTC's files for cuDNN, which may need them; errors are ignored */
    all->plans.all_stay = all->dnn.cudnnGetVersion() < CAPTURES_KEEP_KERNELS;
    cudnnStatus_t result = all->dnn.cudnnCreate(&all->handle);
    if (result != MPG_CUDNN_STATUS_SUCCESS) {
      all->handle = NULL;
      status =
          mpg_fail(MPG_ERROR, "cudnnCreate failed: %s (%s)", all->dnn.cudnnGetErrorString(result),
                   mpg_cuda_library_path(MPG_CUDA_CUDNN));
    }
  }
  if (status != MPG_OK) {
    release(all);
    return status;
  }
  *contents = all;
  return MPG_OK;
}

/* --- Descriptors ------------------------------------------------------------------------------ */

/* Creates descriptors and sets their attributes. After the first failure, `status` keeps that
 * failure, and all calls do nothing. */
struct builder {
  const functions *dnn;
  cudnnStatus_t status;

  void create(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *made) {
    if (status == MPG_CUDNN_STATUS_SUCCESS) status = dnn->cudnnBackendCreateDescriptor(type, made);
  }
  void set(cudnnBackendDescriptor_t to, int attribute, int type, int64_t count,
           const void *values) {
    if (status == MPG_CUDNN_STATUS_SUCCESS)
      status = dnn->cudnnBackendSetAttribute(to, (cudnnBackendAttributeName_t)attribute,
                                             (cudnnBackendAttributeType_t)type, count, values);
  }
  void set_number(cudnnBackendDescriptor_t to, int attribute, int64_t value) {
    set(to, attribute, MPG_CUDNN_TYPE_INT64, 1, &value);
  }
  /* Sets an attribute to an enum value. */
  void set_word(cudnnBackendDescriptor_t to, int attribute, int type, int value) {
    set(to, attribute, type, 1, &value);
  }
  void set_descriptor(cudnnBackendDescriptor_t to, int attribute,
                      const cudnnBackendDescriptor_t *value) {
    set(to, attribute, MPG_CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, value);
  }
  void get(cudnnBackendDescriptor_t from, int attribute, int type, int64_t most, int64_t *count,
           void *values) {
    if (status == MPG_CUDNN_STATUS_SUCCESS)
      status =
          dnn->cudnnBackendGetAttribute(from, (cudnnBackendAttributeName_t)attribute,
                                        (cudnnBackendAttributeType_t)type, most, count, values);
  }
  void finalize(cudnnBackendDescriptor_t which) {
    if (status == MPG_CUDNN_STATUS_SUCCESS) status = dnn->cudnnBackendFinalize(which);
  }
};

void destroy(const functions *dnn, cudnnBackendDescriptor_t *which) {
  if (*which) dnn->cudnnBackendDestroyDescriptor(*which);
  *which = NULL;
}

void destroy_plan(const functions *dnn, mpg_cudnn_plan *p) {
  destroy(dnn, &p->plan);
  destroy(dnn, &p->config);
  destroy(dnn, &p->graph);
  destroy(dnn, &p->add);
  destroy(dnn, &p->addition);
  destroy(dnn, &p->operation);
  destroy(dnn, &p->convolution);
  for (int i = 0; i < TENSORS; i++) destroy(dnn, &p->tensors[i]);
  mpg_free(p);
}

void release(void *contents) {
  library *all = (library *)contents;
  mpg_plans_clear(&all->plans, [all](mpg_cudnn_plan *p) { destroy_plan(&all->dnn, p); });
  if (all->handle) all->dnn.cudnnDestroy(all->handle);
  mpg_free(all);
}

int type_of(int64_t dtype) {
  return dtype == MPG_FLOAT64    ? MPG_CUDNN_DATA_DOUBLE
         : dtype == MPG_FLOAT16  ? MPG_CUDNN_DATA_HALF
         : dtype == MPG_BFLOAT16 ? MPG_CUDNN_DATA_BFLOAT16
                                 : MPG_CUDNN_DATA_FLOAT;
}

/* Returns the cuDNN type in which products are summed. */
int sum_type(const signature &key) {
  return key.dtype == MPG_FLOAT64 ? MPG_CUDNN_DATA_DOUBLE : MPG_CUDNN_DATA_FLOAT;
}

/* Creates a tensor's descriptor. cuDNN's dimensions are always in the order batch, channels, space.
 * The strides express the layout. */
void make_tensor(builder *b, const signature &key, int which, cudnnBackendDescriptor_t *made) {
  int ndim = (int)key.ndim + 2;
  static const bool is_virtual = true;
  static const int64_t one[3] = {1, 1, 1};
  int64_t dims[5] = {key.batch, key.channels}, strides[5], stride = 1;
  const int64_t *space = which == BIAS     ? one
                         : which == DATA   ? key.in
                         : which == WEIGHT ? key.kernel
                                           : key.out;
  if (which == WEIGHT) dims[0] = key.filters, dims[1] = key.channels / key.groups;
  if (which == BIAS) dims[0] = 1;
  if (which >= OUT) dims[1] = key.filters;
  for (int i = 2; i < ndim; i++) dims[i] = space[i - 2];
  if (key.last) strides[1] = 1, stride = dims[1];
  for (int i = ndim - 1; i >= 2; i--) strides[i] = stride, stride *= dims[i];
  if (!key.last) strides[1] = stride, stride *= dims[1];
  strides[0] = stride;
  b->create((cudnnBackendDescriptorType_t)MPG_CUDNN_BACKEND_TENSOR_DESCRIPTOR, made);
  b->set_word(*made, MPG_CUDNN_ATTR_TENSOR_DATA_TYPE, MPG_CUDNN_TYPE_DATA_TYPE,
              which == SUM ? sum_type(key) : type_of(key.dtype));
  if (which == SUM)
    b->set(*made, MPG_CUDNN_ATTR_TENSOR_IS_VIRTUAL, MPG_CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
  b->set(*made, MPG_CUDNN_ATTR_TENSOR_DIMENSIONS, MPG_CUDNN_TYPE_INT64, ndim, dims);
  b->set(*made, MPG_CUDNN_ATTR_TENSOR_STRIDES, MPG_CUDNN_TYPE_INT64, ndim, strides);
  b->set_number(*made, MPG_CUDNN_ATTR_TENSOR_UNIQUE_ID, which + 1);
  b->set_number(*made, MPG_CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, MPG_CUDNN_ALIGNMENT);
  b->finalize(*made);
}

/* Descriptor type and attribute names of the operation for each direction. `tensors` is in the
 * order data, weight, out. */
const struct {
  int type, tensors[OPERANDS], convolution, alpha, beta;
} operations[] = {
    {MPG_CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
     {MPG_CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
      MPG_CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
      MPG_CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y},
     MPG_CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
     MPG_CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
     MPG_CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA},
    {MPG_CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
     {MPG_CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
      MPG_CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
      MPG_CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY},
     MPG_CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
     MPG_CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
     MPG_CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA},
    {MPG_CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
     {MPG_CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
      MPG_CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
      MPG_CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY},
     MPG_CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
     MPG_CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
     MPG_CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA},
};

/* Adds the operation out = sum + bias. */
void add_bias(builder *b, mpg_cudnn_plan *p) {
  float one = 1;
  b->create((cudnnBackendDescriptorType_t)MPG_CUDNN_BACKEND_POINTWISE_DESCRIPTOR, &p->addition);
  b->set_word(p->addition, MPG_CUDNN_ATTR_POINTWISE_MODE, MPG_CUDNN_TYPE_POINTWISE_MODE,
              MPG_CUDNN_POINTWISE_ADD);
  b->set_word(p->addition, MPG_CUDNN_ATTR_POINTWISE_MATH_PREC, MPG_CUDNN_TYPE_DATA_TYPE,
              sum_type(p->key));
  b->finalize(p->addition);
  b->create((cudnnBackendDescriptorType_t)MPG_CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR,
            &p->add);
  b->set_descriptor(p->add, MPG_CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, &p->addition);
  b->set_descriptor(p->add, MPG_CUDNN_ATTR_OPERATION_POINTWISE_XDESC, &p->tensors[SUM]);
  b->set_descriptor(p->add, MPG_CUDNN_ATTR_OPERATION_POINTWISE_BDESC, &p->tensors[BIAS]);
  b->set_descriptor(p->add, MPG_CUDNN_ATTR_OPERATION_POINTWISE_YDESC, &p->tensors[OUT]);
  b->set(p->add, MPG_CUDNN_ATTR_OPERATION_POINTWISE_ALPHA1, MPG_CUDNN_TYPE_FLOAT, 1, &one);
  b->set(p->add, MPG_CUDNN_ATTR_OPERATION_POINTWISE_ALPHA2, MPG_CUDNN_TYPE_FLOAT, 1, &one);
  b->finalize(p->add);
}

void make_graph(builder *b, const library *all, mpg_cudnn_plan *p) {
  const signature &key = p->key;
  bool wide = key.dtype == MPG_FLOAT64;
  for (int i = 0; i < (key.bias ? TENSORS : OPERANDS); i++) make_tensor(b, key, i, &p->tensors[i]);
  b->create((cudnnBackendDescriptorType_t)MPG_CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR,
            &p->convolution);
  b->set_word(p->convolution, MPG_CUDNN_ATTR_CONVOLUTION_COMP_TYPE, MPG_CUDNN_TYPE_DATA_TYPE,
              sum_type(key));
  b->set_word(p->convolution, MPG_CUDNN_ATTR_CONVOLUTION_CONV_MODE, MPG_CUDNN_TYPE_CONVOLUTION_MODE,
              MPG_CUDNN_CROSS_CORRELATION);
  b->set_number(p->convolution, MPG_CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, key.ndim);
  b->set(p->convolution, MPG_CUDNN_ATTR_CONVOLUTION_DILATIONS, MPG_CUDNN_TYPE_INT64, key.ndim,
         key.dilate);
  b->set(p->convolution, MPG_CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, MPG_CUDNN_TYPE_INT64, key.ndim,
         key.stride);
  b->set(p->convolution, MPG_CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, MPG_CUDNN_TYPE_INT64, key.ndim,
         key.pad);
  b->set(p->convolution, MPG_CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, MPG_CUDNN_TYPE_INT64, key.ndim,
         key.pad);
  b->finalize(p->convolution);
  const auto &operation = operations[key.direction];
  double one = 1, zero = 0;
  float single_one = 1, single_zero = 0;
  int scalar = wide ? MPG_CUDNN_TYPE_DOUBLE : MPG_CUDNN_TYPE_FLOAT;
  b->create((cudnnBackendDescriptorType_t)operation.type, &p->operation);
  for (int i = 0; i < OPERANDS; i++)
    b->set_descriptor(p->operation, operation.tensors[i],
                      &p->tensors[i == OUT && key.bias ? SUM : i]);
  b->set_descriptor(p->operation, operation.convolution, &p->convolution);
  b->set(p->operation, operation.alpha, scalar, 1, wide ? (const void *)&one : &single_one);
  b->set(p->operation, operation.beta, scalar, 1, wide ? (const void *)&zero : &single_zero);
  b->finalize(p->operation);
  if (key.bias) add_bias(b, p);
  const cudnnBackendDescriptor_t operations_of_graph[] = {p->operation, p->add};
  b->create((cudnnBackendDescriptorType_t)MPG_CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, &p->graph);
  b->set(p->graph, MPG_CUDNN_ATTR_OPERATIONGRAPH_OPS, MPG_CUDNN_TYPE_BACKEND_DESCRIPTOR,
         key.bias ? 2 : 1, operations_of_graph);
  b->set(p->graph, MPG_CUDNN_ATTR_OPERATIONGRAPH_HANDLE, MPG_CUDNN_TYPE_HANDLE, 1, &all->handle);
  b->finalize(p->graph);
}

/* Checks that an engine is deterministic (unless MPGLUON_CUDA_DETERMINISTIC=0), that it preserves
 * the dtype's precision (except that float32 may use TF32 if MPGLUON_CUDA_TF32=1), and that it is
 * precompiled. Compiling an engine at run time would take seconds per signature. */
bool is_allowed(const library *all, const signature &key, cudnnBackendDescriptor_t config) {
  builder b = {&all->dnn, MPG_CUDNN_STATUS_SUCCESS};
  cudnnBackendDescriptor_t engine = NULL;
  int notes[MOST_NOTES], behaviors[MOST_NOTES];
  int64_t count = 0, num_behaviors = 0;
  b.create((cudnnBackendDescriptorType_t)MPG_CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine);
  b.get(config, MPG_CUDNN_ATTR_ENGINECFG_ENGINE, MPG_CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count,
        &engine);
  b.get(engine, MPG_CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, MPG_CUDNN_TYPE_NUMERICAL_NOTE, MOST_NOTES,
        &count, notes);
  b.get(engine, MPG_CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, MPG_CUDNN_TYPE_BEHAVIOR_NOTE, MOST_NOTES,
        &num_behaviors, behaviors);
  destroy(&all->dnn, &engine);
  bool allowed = b.status == MPG_CUDNN_STATUS_SUCCESS,
       half = key.dtype == MPG_FLOAT16 || key.dtype == MPG_BFLOAT16;
  for (int64_t i = 0; i < count && i < MOST_NOTES && allowed; i++) switch (notes[i]) {
      case MPG_CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC: allowed = !all->deterministic; break;
      case MPG_CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION:
      case MPG_CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4: /* these lose precision */
      case MPG_CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6:
      case MPG_CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13: allowed = false; break;
      case MPG_CUDNN_NUMERICAL_NOTE_FFT: allowed = false; break; /* inexact for small sums */
      case MPG_CUDNN_NUMERICAL_NOTE_WINOGRAD: allowed = !half; break;
      case MPG_CUDNN_NUMERICAL_NOTE_TENSOR_CORE:
      case MPG_CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS:
        allowed = key.dtype != MPG_FLOAT32 || all->tf32;
        break;
      default: break;
    }
  for (int64_t i = 0; i < num_behaviors && i < MOST_NOTES; i++)
    if (behaviors[i] == MPG_CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION) allowed = false;
  return allowed;
}

/* Builds the plan from one of cuDNN's engine configurations, if the configuration is allowed and
 * supported. */
cudnnStatus_t try_config(const library *all, mpg_cudnn_plan *p, cudnnBackendDescriptor_t config) {
  builder b = {&all->dnn, MPG_CUDNN_STATUS_SUCCESS};
  int64_t count = 0;
  if (!is_allowed(all, p->key, config)) return MPG_CUDNN_STATUS_NOT_SUPPORTED;
  b.create((cudnnBackendDescriptorType_t)MPG_CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &p->plan);
  b.set(p->plan, MPG_CUDNN_ATTR_EXECUTION_PLAN_HANDLE, MPG_CUDNN_TYPE_HANDLE, 1, &all->handle);
  b.set_descriptor(p->plan, MPG_CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, &config);
  b.finalize(p->plan);
  b.get(p->plan, MPG_CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, MPG_CUDNN_TYPE_INT64, 1, &count,
        &p->workspace);
  if (b.status == MPG_CUDNN_STATUS_SUCCESS && p->workspace > WORKSPACE)
    b.status = MPG_CUDNN_STATUS_NOT_SUPPORTED;
  if (b.status != MPG_CUDNN_STATUS_SUCCESS) destroy(&all->dnn, &p->plan);
  return b.status;
}

/* Builds the plan from the first suitable configuration that cuDNN proposes. cuDNN sorts them by
 * expected run time. */
cudnnStatus_t choose(const library *all, mpg_cudnn_plan *p, int mode) {
  const functions *dnn = &all->dnn;
  builder b = {dnn, MPG_CUDNN_STATUS_SUCCESS};
  cudnnBackendDescriptor_t heuristics = NULL, configs[MOST_CONFIGS] = {};
  int64_t count = 0, given = 0;
  b.create((cudnnBackendDescriptorType_t)MPG_CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, &heuristics);
  b.set_descriptor(heuristics, MPG_CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, &p->graph);
  b.set_word(heuristics, MPG_CUDNN_ATTR_ENGINEHEUR_MODE, MPG_CUDNN_TYPE_HEUR_MODE, mode);
  b.finalize(heuristics);
  b.get(heuristics, MPG_CUDNN_ATTR_ENGINEHEUR_RESULTS, MPG_CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &count,
        NULL);
  if (count > MOST_CONFIGS) count = MOST_CONFIGS;
  for (int64_t i = 0; i < count; i++)
    b.create((cudnnBackendDescriptorType_t)MPG_CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &configs[i]);
  if (count)
    b.get(heuristics, MPG_CUDNN_ATTR_ENGINEHEUR_RESULTS, MPG_CUDNN_TYPE_BACKEND_DESCRIPTOR, count,
          &given, configs);
  if (given > count) given = count;
  cudnnStatus_t status = b.status;
  if (status == MPG_CUDNN_STATUS_SUCCESS) status = MPG_CUDNN_STATUS_NOT_SUPPORTED;
  for (int64_t i = 0; i < given && !p->plan && b.status == MPG_CUDNN_STATUS_SUCCESS; i++) {
    status = try_config(all, p, configs[i]);
    if (p->plan) { /* keeps the configuration, because the plan refers to it */
      p->config = configs[i];
      configs[i] = NULL;
    }
  }
  for (int64_t i = 0; i < count; i++) destroy(dnn, &configs[i]);
  destroy(dnn, &heuristics);
  return status;
}

mpg_status build(const mpg_kernel_call *call, const library *all, mpg_cudnn_plan *p) {
  builder b = {&all->dnn, MPG_CUDNN_STATUS_SUCCESS};
  make_graph(&b, all, p);
  if (b.status == MPG_CUDNN_STATUS_SUCCESS) b.status = choose(all, p, MPG_CUDNN_HEUR_MODE_A);
  /* If cuDNN lacks a plan with the bias, the caller then requests a plan without the bias, and any
   * error is reported there. */
  if (p->key.bias) return MPG_OK;
  if (b.status != MPG_CUDNN_STATUS_SUCCESS && p->graph) {
    cudnnStatus_t again = choose(all, p, MPG_CUDNN_HEUR_MODE_FALLBACK);
    if (again == MPG_CUDNN_STATUS_SUCCESS || unsupported(b.status)) b.status = again;
  }
  return b.status == MPG_CUDNN_STATUS_SUCCESS || unsupported(b.status)
             ? MPG_OK
             : failed(call, &all->dnn, "cuDNN's choice of an algorithm", b.status);
}

signature signature_of(const mpg_convolution *c, mpg_cuda_direction direction, mpg_dtype dtype,
                       bool bias) {
  signature key = {};
  (mpg_window &)key = mpg_window_with_axes(&c->window, 2); /* cuDNN requires at least two axes */
  key.direction = direction, key.dtype = dtype, key.last = c->layout != MPG_CHANNELS_FIRST;
  key.batch = c->batch, key.channels = c->channels, key.filters = c->filters,
  key.groups = c->groups, key.bias = bias;
  return key;
}

mpg_status library_of(const mpg_kernel_call *call, library **all) {
  void *contents;
  MPG_TRY(mpg_cuda_cached(call->device, MPG_CUDA_SLOT_CUDNN, make, release, &contents));
  *all = (library *)contents;
  return MPG_OK;
}

} // namespace

extern "C" mpg_status mpg_cudnn_find(const mpg_kernel_call *call, const mpg_convolution *c,
                                     mpg_cuda_direction direction, mpg_dtype dtype, bool bias,
                                     mpg_cudnn_plan **plan, size_t *workspace) {
  library *all;
  MPG_TRY(library_of(call, &all));
  MPG_TRY(mpg_plans_find(
      &all->plans, signature_of(c, direction, dtype, bias),
      [=](mpg_cudnn_plan *p) { return build(call, all, p); },
      [=](mpg_cudnn_plan *p) { destroy_plan(&all->dnn, p); }, plan));
  *workspace = (size_t)(*plan)->workspace;
  if (!(*plan)->plan) *plan = NULL;
  return MPG_OK;
}

extern "C" mpg_status mpg_cudnn_run(const mpg_kernel_call *call, mpg_cudnn_plan *plan,
                                    void *const *arrays, void *workspace) {
  static const int64_t names[] = {DATA + 1, WEIGHT + 1, OUT + 1, BIAS + 1};
  int64_t count = plan->key.bias ? BIAS + 1 : OPERANDS;
  library *all;
  MPG_TRY(library_of(call, &all));
  builder b = {&all->dnn, MPG_CUDNN_STATUS_SUCCESS};
  if (all->stream != (cudaStream_t)call->stream) {
    b.status = all->dnn.cudnnSetStream(all->handle, (cudaStream_t)call->stream);
    if (b.status == MPG_CUDNN_STATUS_SUCCESS) all->stream = (cudaStream_t)call->stream;
  }
  cudnnBackendDescriptor_t pack = NULL;
  b.create((cudnnBackendDescriptorType_t)MPG_CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack);
  b.set(pack, MPG_CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, MPG_CUDNN_TYPE_INT64, count, names);
  b.set(pack, MPG_CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, MPG_CUDNN_TYPE_VOID_PTR, count, arrays);
  b.set(pack, MPG_CUDNN_ATTR_VARIANT_PACK_WORKSPACE, MPG_CUDNN_TYPE_VOID_PTR, 1, &workspace);
  b.finalize(pack);
  if (b.status == MPG_CUDNN_STATUS_SUCCESS)
    b.status = all->dnn.cudnnBackendExecute(all->handle, plan->plan, pack);
  mpg_status status = b.status == MPG_CUDNN_STATUS_SUCCESS
                          ? MPG_OK
                          : failed(call, &all->dnn, "cuDNN's convolution", b.status);
  destroy(&all->dnn, &pack);
  return status;
}
