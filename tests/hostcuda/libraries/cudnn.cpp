// Test-only: emulates cuDNN on the host. Implements kernels/cuda/vendor/cudnn.h with plain loops,
// in stream order. It supports graphs of one convolution, or of a convolution and the addition of a
// bias to its unrounded sums (without groups, with two spatial axes). It rejects attributes with a
// wrong type or count, as cuDNN does. It aborts if arrays, workspaces or descriptors do not match
// the plan. Some of the engines that it proposes are traps, which callers must not choose: the
// first is nondeterministic, and others round, need too much workspace or cannot be finalized.
// Running a trap aborts or changes results.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <type_traits>
#include <vector>

#include "cuda_runtime.h"
#include "kernels/common/half.h"
#include "kernels/cuda/vendor/cudnn.h"

struct cudnnContext {
  int device;
  cudaStream_t stream;
};

namespace {

#define EXPORT extern "C" __attribute__((visibility("default")))

[[noreturn]] void wrong(const char *what) {
  fprintf(stderr, "cudnn stand-in: %s\n", what);
  abort();
}

struct attribute {
  int type;
  int64_t count;
  std::vector<char> bytes;
};
struct descriptor {
  int type;
  long serial; // unique, whereas addresses are reused
  bool final = false;
  int engine = 0; // for a configuration or an engine
  std::map<int, attribute> attributes;
  const char *at(int name) const {
    auto found = attributes.find(name);
    return found == attributes.end() ? nullptr : found->second.bytes.data();
  }
  int64_t number(int name) const { return *(const int64_t *)at(name); }
  int word(int name) const { return *(const int *)at(name); }
  const descriptor *child(int name) const { return *(descriptor *const *)at(name); }
};

std::mutex lock;              // guards the following
std::set<const void *> alive; // descriptors and handles
std::set<long> serials;       // live descriptors' serials
long made;
const size_t VERSION = 91900; // older than CAPTURES_KEEP_KERNELS in cudnn.cu
struct report {
  ~report() { // at process exit
    if (getenv("HOSTCUDA_REPORT")) fprintf(stderr, "cudnn stand-in: %zu left\n", alive.size());
  }
} at_end;

descriptor *checked(cudnnBackendDescriptor_t which) {
  std::lock_guard<std::mutex> hold(lock);
  if (!alive.count(which)) wrong("a descriptor was destroyed, or is none");
  return (descriptor *)which;
}

size_t size_of(int type) {
  switch (type) {
    case MPG_CUDNN_TYPE_INT64:
    case MPG_CUDNN_TYPE_DOUBLE:
    case MPG_CUDNN_TYPE_HANDLE:
    case MPG_CUDNN_TYPE_VOID_PTR:
    case MPG_CUDNN_TYPE_BACKEND_DESCRIPTOR: return 8;
    case MPG_CUDNN_TYPE_BOOLEAN: return 1;
    default: return 4;
  }
}

// Attribute that a descriptor type requires: name, type and count (0 means one or more).
struct rule {
  int descriptor, name, type, count;
  bool optional = false;
};
const rule rules[] = {
    {MPG_CUDNN_BACKEND_TENSOR_DESCRIPTOR, MPG_CUDNN_ATTR_TENSOR_DATA_TYPE, MPG_CUDNN_TYPE_DATA_TYPE,
     1},
    {MPG_CUDNN_BACKEND_TENSOR_DESCRIPTOR, MPG_CUDNN_ATTR_TENSOR_DIMENSIONS, MPG_CUDNN_TYPE_INT64,
     0},
    {MPG_CUDNN_BACKEND_TENSOR_DESCRIPTOR, MPG_CUDNN_ATTR_TENSOR_STRIDES, MPG_CUDNN_TYPE_INT64, 0},
    {MPG_CUDNN_BACKEND_TENSOR_DESCRIPTOR, MPG_CUDNN_ATTR_TENSOR_UNIQUE_ID, MPG_CUDNN_TYPE_INT64, 1},
    {MPG_CUDNN_BACKEND_TENSOR_DESCRIPTOR, MPG_CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT,
     MPG_CUDNN_TYPE_INT64, 1},
    {MPG_CUDNN_BACKEND_TENSOR_DESCRIPTOR, MPG_CUDNN_ATTR_TENSOR_IS_VIRTUAL, MPG_CUDNN_TYPE_BOOLEAN,
     1, true},
    {MPG_CUDNN_BACKEND_POINTWISE_DESCRIPTOR, MPG_CUDNN_ATTR_POINTWISE_MODE,
     MPG_CUDNN_TYPE_POINTWISE_MODE, 1},
    {MPG_CUDNN_BACKEND_POINTWISE_DESCRIPTOR, MPG_CUDNN_ATTR_POINTWISE_MATH_PREC,
     MPG_CUDNN_TYPE_DATA_TYPE, 1},
    {MPG_CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR,
     MPG_CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, MPG_CUDNN_TYPE_BACKEND_DESCRIPTOR, 1},
    {MPG_CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, MPG_CUDNN_ATTR_OPERATION_POINTWISE_XDESC,
     MPG_CUDNN_TYPE_BACKEND_DESCRIPTOR, 1},
    {MPG_CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, MPG_CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
     MPG_CUDNN_TYPE_BACKEND_DESCRIPTOR, 1},
    {MPG_CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, MPG_CUDNN_ATTR_OPERATION_POINTWISE_YDESC,
     MPG_CUDNN_TYPE_BACKEND_DESCRIPTOR, 1},
    {MPG_CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, MPG_CUDNN_ATTR_OPERATION_POINTWISE_ALPHA1,
     MPG_CUDNN_TYPE_FLOAT, 1},
    {MPG_CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, MPG_CUDNN_ATTR_OPERATION_POINTWISE_ALPHA2,
     MPG_CUDNN_TYPE_FLOAT, 1},
    {MPG_CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, MPG_CUDNN_ATTR_CONVOLUTION_COMP_TYPE,
     MPG_CUDNN_TYPE_DATA_TYPE, 1},
    {MPG_CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, MPG_CUDNN_ATTR_CONVOLUTION_CONV_MODE,
     MPG_CUDNN_TYPE_CONVOLUTION_MODE, 1},
    {MPG_CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, MPG_CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS,
     MPG_CUDNN_TYPE_INT64, 1},
    {MPG_CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, MPG_CUDNN_ATTR_CONVOLUTION_DILATIONS,
     MPG_CUDNN_TYPE_INT64, 0},
    {MPG_CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, MPG_CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES,
     MPG_CUDNN_TYPE_INT64, 0},
    {MPG_CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, MPG_CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS,
     MPG_CUDNN_TYPE_INT64, 0},
    {MPG_CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, MPG_CUDNN_ATTR_CONVOLUTION_POST_PADDINGS,
     MPG_CUDNN_TYPE_INT64, 0},
    {MPG_CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, MPG_CUDNN_ATTR_OPERATIONGRAPH_HANDLE,
     MPG_CUDNN_TYPE_HANDLE, 1},
    {MPG_CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, MPG_CUDNN_ATTR_OPERATIONGRAPH_OPS,
     MPG_CUDNN_TYPE_BACKEND_DESCRIPTOR, 0},
    {MPG_CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, MPG_CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH,
     MPG_CUDNN_TYPE_BACKEND_DESCRIPTOR, 1},
    {MPG_CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, MPG_CUDNN_ATTR_ENGINEHEUR_MODE,
     MPG_CUDNN_TYPE_HEUR_MODE, 1},
    {MPG_CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, MPG_CUDNN_ATTR_EXECUTION_PLAN_HANDLE,
     MPG_CUDNN_TYPE_HANDLE, 1},
    {MPG_CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, MPG_CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
     MPG_CUDNN_TYPE_BACKEND_DESCRIPTOR, 1},
    {MPG_CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, MPG_CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS,
     MPG_CUDNN_TYPE_INT64, 0},
    {MPG_CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, MPG_CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS,
     MPG_CUDNN_TYPE_VOID_PTR, 0},
    {MPG_CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, MPG_CUDNN_ATTR_VARIANT_PACK_WORKSPACE,
     MPG_CUDNN_TYPE_VOID_PTR, 1},
};

// Descriptor type and attribute names of the operation of each direction. Tensors are in the order
// data, weight, out.
struct operation {
  int descriptor, tensors[3], convolution, alpha, beta;
};
const operation operations[] = {
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
int direction_of(int type) {
  for (int i = 0; i < 3; i++)
    if (operations[i].descriptor == type) return i;
  return -1;
}

bool takes(const descriptor *d, int name, int type, int64_t count) {
  int direction = direction_of(d->type);
  if (direction >= 0) {
    const operation &o = operations[direction];
    bool is_child = name == o.convolution || name == o.tensors[0] || name == o.tensors[1] ||
                    name == o.tensors[2],
         is_factor = name == o.alpha || name == o.beta;
    return count == 1 &&
           ((is_child && type == MPG_CUDNN_TYPE_BACKEND_DESCRIPTOR) ||
            (is_factor && (type == MPG_CUDNN_TYPE_FLOAT || type == MPG_CUDNN_TYPE_DOUBLE)));
  }
  for (const rule &r : rules)
    if (r.descriptor == d->type && r.name == name)
      return r.type == type && (r.count ? count == r.count : count > 0);
  return false;
}

bool complete(const descriptor *d) {
  int direction = direction_of(d->type);
  for (const rule &r : rules)
    if (r.descriptor == d->type && !r.optional && !d->at(r.name)) return false;
  if (direction < 0) return true;
  const operation &o = operations[direction];
  return d->at(o.alpha) && d->at(o.beta) && d->at(o.convolution) && d->at(o.tensors[0]) &&
         d->at(o.tensors[1]) && d->at(o.tensors[2]);
}

// --- A convolution, parsed from its descriptors --------------------------------------------------
struct tensor {
  int type, ndim;
  int64_t dims[5], strides[5], alignment, id;
  bool is_virtual;
};
tensor read_tensor(const descriptor *d) {
  const attribute &dims = d->attributes.at(MPG_CUDNN_ATTR_TENSOR_DIMENSIONS),
                  &strides = d->attributes.at(MPG_CUDNN_ATTR_TENSOR_STRIDES);
  tensor t = {d->word(MPG_CUDNN_ATTR_TENSOR_DATA_TYPE),
              (int)dims.count,
              {},
              {},
              d->number(MPG_CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT),
              d->number(MPG_CUDNN_ATTR_TENSOR_UNIQUE_ID),
              d->at(MPG_CUDNN_ATTR_TENSOR_IS_VIRTUAL) && *d->at(MPG_CUDNN_ATTR_TENSOR_IS_VIRTUAL)};
  memcpy(t.dims, dims.bytes.data(), dims.bytes.size());
  memcpy(t.strides, strides.bytes.data(), strides.bytes.size());
  return t;
}
struct convolution {
  int direction, engine = 0;
  tensor tensors[3]; // data, weight, out
  int64_t pad[3], stride[3], dilate[3];
  bool wide, adds = false; // adds: a second operation adds a bias, and `out` is its result
  tensor bias, sum;
};
convolution read_convolution(const descriptor *operation_desc) {
  convolution c;
  c.direction = direction_of(operation_desc->type);
  const operation &o = operations[c.direction];
  for (int i = 0; i < 3; i++) c.tensors[i] = read_tensor(operation_desc->child(o.tensors[i]));
  const descriptor *conv = operation_desc->child(o.convolution);
  size_t bytes = (size_t)conv->number(MPG_CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS) * 8;
  memcpy(c.pad, conv->at(MPG_CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS), bytes);
  memcpy(c.stride, conv->at(MPG_CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES), bytes);
  memcpy(c.dilate, conv->at(MPG_CUDNN_ATTR_CONVOLUTION_DILATIONS), bytes);
  c.wide = c.tensors[0].type == MPG_CUDNN_DATA_DOUBLE;
  return c;
}

bool dense(const tensor &t, bool last) { // true if contiguous with channels last, or first
  int64_t stride = 1;
  for (int k = 0; k < t.ndim; k++) {
    int axis = last ? (k == 0 ? 1 : k == t.ndim - 1 ? 0 : t.ndim - k) : t.ndim - 1 - k;
    if (t.dims[axis] != 1 && t.strides[axis] != stride) return false;
    stride *= t.dims[axis];
  }
  return true;
}

bool sound(const descriptor *d) { // true if the tensors and the convolution are consistent
  const operation &o = operations[direction_of(d->type)];
  const descriptor *conv = d->child(o.convolution);
  convolution c = read_convolution(d);
  const tensor *t = c.tensors;
  int64_t space = conv->number(MPG_CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS);
  int compute = conv->word(MPG_CUDNN_ATTR_CONVOLUTION_COMP_TYPE);
  if (space < 2 || space > 3 ||
      conv->word(MPG_CUDNN_ATTR_CONVOLUTION_CONV_MODE) != MPG_CUDNN_CROSS_CORRELATION)
    return false;
  for (int name :
       {MPG_CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, MPG_CUDNN_ATTR_CONVOLUTION_POST_PADDINGS,
        MPG_CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, MPG_CUDNN_ATTR_CONVOLUTION_DILATIONS})
    if (conv->attributes.at(name).count != space) return false;
  if (memcmp(conv->at(MPG_CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS),
             conv->at(MPG_CUDNN_ATTR_CONVOLUTION_POST_PADDINGS), (size_t)space * 8))
    return false;
  if (compute != (c.wide ? MPG_CUDNN_DATA_DOUBLE : MPG_CUDNN_DATA_FLOAT)) return false;
  if (d->attributes.at(o.alpha).type != (c.wide ? MPG_CUDNN_TYPE_DOUBLE : MPG_CUDNN_TYPE_FLOAT))
    return false;
  double alpha = c.wide ? *(const double *)d->at(o.alpha) : *(const float *)d->at(o.alpha),
         beta = c.wide ? *(const double *)d->at(o.beta) : *(const float *)d->at(o.beta);
  if (alpha != 1 || beta != 0) return false;
  for (int i = 0; i < 3; i++) {
    if (t[i].ndim != space + 2 ||
        (t[i].type != t[0].type && !(t[i].is_virtual && t[i].type == compute)))
      return false;
    for (int k = 0; k < t[i].ndim; k++)
      if (t[i].dims[k] < 1 || t[i].strides[k] < 1) return false;
  }
  if (t[0].dims[0] != t[2].dims[0] || t[1].dims[0] != t[2].dims[1] || t[0].dims[1] % t[1].dims[1] ||
      t[1].dims[0] % (t[0].dims[1] / t[1].dims[1]))
    return false;
  for (int k = 0; k < space; k++)
    if ((t[0].dims[k + 2] + 2 * c.pad[k] - c.dilate[k] * (t[1].dims[k + 2] - 1) - 1) / c.stride[k] +
            1 !=
        t[2].dims[k + 2])
      return false;
  return true;
}

int64_t elements(const tensor &t) {
  int64_t n = 1;
  for (int k = 0; k < t.ndim; k++) n *= t.dims[k];
  return n;
}

bool same_places(const tensor &a, const tensor &b) {
  return a.ndim == b.ndim && !memcmp(a.dims, b.dims, (size_t)a.ndim * 8) &&
         !memcmp(a.strides, b.strides, (size_t)a.ndim * 8);
}

// Parses a supported graph: one convolution, or a convolution with virtual sums and the addition of
// a per-channel bias. Returns false for all other graphs.
bool read_graph(const descriptor *graph, convolution *c) {
  const attribute &all = graph->attributes.at(MPG_CUDNN_ATTR_OPERATIONGRAPH_OPS);
  descriptor *const *operations = (descriptor *const *)all.bytes.data();
  if (all.count > 2 || direction_of(operations[0]->type) < 0) return false;
  *c = read_convolution(operations[0]);
  if (all.count == 2) {
    const descriptor *add = operations[1];
    if (add->type != MPG_CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR || c->direction != 0)
      return false;
    c->adds = true;
    c->sum = c->tensors[2];
    const descriptor *how = add->child(MPG_CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
    if (how->word(MPG_CUDNN_ATTR_POINTWISE_MODE) != MPG_CUDNN_POINTWISE_ADD ||
        how->word(MPG_CUDNN_ATTR_POINTWISE_MATH_PREC) != c->sum.type)
      return false;
    for (int factor :
         {MPG_CUDNN_ATTR_OPERATION_POINTWISE_ALPHA1, MPG_CUDNN_ATTR_OPERATION_POINTWISE_ALPHA2})
      if (*(const float *)add->at(factor) != 1) return false;
    c->bias = read_tensor(add->child(MPG_CUDNN_ATTR_OPERATION_POINTWISE_BDESC));
    c->tensors[2] = read_tensor(add->child(MPG_CUDNN_ATTR_OPERATION_POINTWISE_YDESC));
    tensor in = read_tensor(add->child(MPG_CUDNN_ATTR_OPERATION_POINTWISE_XDESC));
    if (in.id != c->sum.id || !c->sum.is_virtual || !same_places(c->sum, c->tensors[2]))
      return false; // sound() has checked the type of the sums
    if (c->bias.is_virtual || c->bias.ndim != in.ndim || c->bias.type != c->tensors[0].type ||
        c->bias.dims[1] != in.dims[1] || elements(c->bias) != in.dims[1])
      return false;
    if (c->bias.strides[1] != 1) return false;
  }
  std::set<int64_t> ids = {c->tensors[0].id, c->tensors[1].id, c->tensors[2].id};
  if (c->adds) ids.insert(c->bias.id), ids.insert(c->sum.id);
  for (const tensor &t : c->tensors)
    if (t.is_virtual || t.type != c->tensors[0].type) return false;
  return ids.size() == (c->adds ? 5 : 3);
}
convolution graph_of(const descriptor *graph) { // parses a finalized graph, which must be valid
  convolution c;
  if (!read_graph(graph, &c)) wrong("a graph that is none");
  return c;
}

// --- Engines -------------------------------------------------------------------------------------
enum { HASTY = 1, ROUNDING, HUGE_WORKSPACE, NEVER, GOOD, WINOGRAD, TRANSFORMED, COMPILED };
std::vector<int> engines_of(const convolution &c, int mode) {
  bool same = true, first = true;
  for (const tensor &t : c.tensors) {
    first = first && dense(t, false);
    same = same && dense(t, true);
  }
  if (!same && !first) return {}; // mixed layouts are not supported
  int64_t groups = c.tensors[0].dims[1] / c.tensors[1].dims[1];
  if (c.wide && groups > 1) return {};
  if (c.adds && groups > 1) return {};
  if (mode == MPG_CUDNN_HEUR_MODE_FALLBACK)
    return c.adds ? std::vector<int>{} : std::vector<int>{GOOD};
  if (mode != MPG_CUDNN_HEUR_MODE_A) return {};
  if (c.tensors[0].ndim == 5) return {HASTY, NEVER}; // only the fallback mode has a usable one
  return {HASTY, WINOGRAD, TRANSFORMED, COMPILED, ROUNDING, HUGE_WORKSPACE, NEVER, GOOD};
}
std::vector<int> notes_of(int engine) {
  switch (engine) {
    case HASTY: return {MPG_CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC};
    case ROUNDING:
      return {MPG_CUDNN_NUMERICAL_NOTE_TENSOR_CORE, MPG_CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS};
    case WINOGRAD:
      return {MPG_CUDNN_NUMERICAL_NOTE_WINOGRAD, MPG_CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4};
    case TRANSFORMED: return {MPG_CUDNN_NUMERICAL_NOTE_FFT};
    default: return {};
  }
}
int64_t workspace_of(const convolution &c, int engine) {
  if (engine == HUGE_WORKSPACE) return (int64_t)8 << 30;
  return c.tensors[1].dims[1] >= 2 ? 64 * c.tensors[1].dims[0] : 0;
}

// --- Running -------------------------------------------------------------------------------------
double load(int type, const void *data, int64_t i) {
  switch (type) {
    case MPG_CUDNN_DATA_DOUBLE: return ((const double *)data)[i];
    case MPG_CUDNN_DATA_FLOAT: return ((const float *)data)[i];
    case MPG_CUDNN_DATA_HALF: return mpg_half_to_float(((const uint16_t *)data)[i]);
    default: return mpg_bfloat16_to_float(((const uint16_t *)data)[i]);
  }
}
void store(int type, void *data, int64_t i, double value) {
  switch (type) {
    case MPG_CUDNN_DATA_DOUBLE: ((double *)data)[i] = value; break;
    case MPG_CUDNN_DATA_FLOAT: ((float *)data)[i] = (float)value; break;
    case MPG_CUDNN_DATA_HALF: ((uint16_t *)data)[i] = mpg_float_to_half((float)value); break;
    default: ((uint16_t *)data)[i] = mpg_float_to_bfloat16((float)value); break;
  }
}
double tf32(double x) { // rounds to TF32: 10 mantissa bits
  float value = (float)x;
  uint32_t bits;
  memcpy(&bits, &value, 4);
  if ((bits & 0x7f800000u) != 0x7f800000u) bits = (bits + 0x1000u) & ~0x1fffu;
  memcpy(&value, &bits, 4);
  return value;
}

struct work {
  convolution c;
  void *arrays[4], *workspace; // data, weight, out, bias
  int64_t workspace_bytes;
  long plan; // serial of the plan, which must outlive captured work; 0 for other work
};

int64_t place(const tensor &t, int64_t a, int64_t b, int64_t z, int64_t y, int64_t x) {
  int64_t at =
      a * t.strides[0] + b * t.strides[1] + y * t.strides[t.ndim - 2] + x * t.strides[t.ndim - 1];
  return t.ndim == 5 ? at + z * t.strides[2] : at;
}

void convolve(const void *opaque) {
  const work *w = (const work *)opaque;
  if (w->plan) {
    std::lock_guard<std::mutex> hold(lock);
    if (!serials.count(w->plan)) wrong("captured work of a plan that was destroyed");
  }
  const convolution &c = w->c;
  const tensor &data = c.tensors[0], &weight = c.tensors[1], &out = c.tensors[2];
  if (w->workspace_bytes) memset(w->workspace, 0xdd, (size_t)w->workspace_bytes);
  std::vector<double> values[3];
  int result = c.direction == 0 ? 2 : c.direction == 1 ? 0 : 1;
  for (int i = 0; i < 3; i++) {
    values[i].assign((size_t)elements(c.tensors[i]), 0.0);
    for (size_t k = 0; k < values[i].size() && i != result; k++) {
      double x = load(c.tensors[i].type, w->arrays[i], (int64_t)k);
      values[i][k] =
          c.engine == ROUNDING && c.tensors[i].type == MPG_CUDNN_DATA_FLOAT ? tf32(x) : x;
    }
  }
  int64_t groups = data.dims[1] / weight.dims[1], filters = weight.dims[0] / groups,
          channels = weight.dims[1];
  int flat = data.ndim == 4; // no depth axis
  int64_t size[3][3], pad[3], stride[3], dilate[3];
  for (int k = 0; k < 3; k++) {
    bool there = !(flat && k == 0);
    for (int i = 0; i < 3; i++) size[i][k] = there ? c.tensors[i].dims[2 + k - flat] : 1;
    pad[k] = there ? c.pad[k - flat] : 0;
    stride[k] = there ? c.stride[k - flat] : 1;
    dilate[k] = there ? c.dilate[k - flat] : 1;
  }
  for (int64_t n = 0; n < data.dims[0]; n++)
    for (int64_t f = 0; f < weight.dims[0]; f++)
      for (int64_t z = 0; z < size[2][0]; z++)
        for (int64_t y = 0; y < size[2][1]; y++)
          for (int64_t x = 0; x < size[2][2]; x++) {
            double &o = values[2][(size_t)place(out, n, f, z, y, x)];
            for (int64_t p = 0; p < size[1][0]; p++)
              for (int64_t q = 0; q < size[1][1]; q++)
                for (int64_t r = 0; r < size[1][2]; r++) {
                  int64_t dz = z * stride[0] - pad[0] + p * dilate[0],
                          dy = y * stride[1] - pad[1] + q * dilate[1],
                          dx = x * stride[2] - pad[2] + r * dilate[2];
                  if (dz < 0 || dz >= size[0][0] || dy < 0 || dy >= size[0][1] || dx < 0 ||
                      dx >= size[0][2])
                    continue;
                  int64_t in = place(data, n, f / filters * channels, dz, dy, dx),
                          at = place(weight, f, 0, p, q, r);
                  for (int64_t ch = 0; ch < channels;
                       ch++, in += data.strides[1], at += weight.strides[1]) {
                    if (c.direction == 0)
                      o += values[0][(size_t)in] * values[1][(size_t)at];
                    else if (c.direction == 1)
                      values[0][(size_t)in] += o * values[1][(size_t)at];
                    else
                      values[1][(size_t)at] += values[0][(size_t)in] * o;
                  }
                }
          }
  for (size_t k = 0; k < values[result].size() && c.adds; k++) {
    int64_t channel = (int64_t)k / out.strides[1] % out.dims[1];
    double sum = values[result][k], bias = load(c.bias.type, w->arrays[3], channel);
    values[result][k] = c.wide ? sum + bias : (float)sum + (float)bias; // in the compute type
  }
  static std::atomic<int> runs;
  if (c.engine == HASTY && runs++ % 2)
    for (double &value : values[result]) value *= 1 + 0x1p-20; // as if sums had another order
  for (size_t k = 0; k < values[result].size(); k++)
    store(c.tensors[result].type, w->arrays[result], (int64_t)k, values[result][k]);
}

} // namespace

EXPORT size_t cudnnGetVersion() { return VERSION; }
EXPORT cudnnStatus_t cudnnCreate(cudnnHandle_t *handle) {
  int device;
  cudaGetDevice(&device);
  *handle = new cudnnContext{device, nullptr};
  std::lock_guard<std::mutex> hold(lock);
  alive.insert(*handle);
  return MPG_CUDNN_STATUS_SUCCESS;
}
EXPORT cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  {
    std::lock_guard<std::mutex> hold(lock);
    alive.erase(handle);
  }
  delete handle;
  return MPG_CUDNN_STATUS_SUCCESS;
}
EXPORT cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  return MPG_CUDNN_STATUS_SUCCESS;
}
EXPORT const char *cudnnGetErrorString(cudnnStatus_t status) {
  switch (status) {
    case MPG_CUDNN_STATUS_SUCCESS: return "CUDNN_STATUS_SUCCESS";
    case MPG_CUDNN_STATUS_BAD_PARAM: return "CUDNN_STATUS_BAD_PARAM";
    case MPG_CUDNN_STATUS_NOT_SUPPORTED: return "CUDNN_STATUS_NOT_SUPPORTED";
    default: return "CUDNN_STATUS_INTERNAL_ERROR";
  }
}
EXPORT void cudnnGetLastErrorString(char *text, size_t size) {
  snprintf(text, size, "as the stand-in says");
}

EXPORT cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                                  cudnnBackendDescriptor_t *result) {
  descriptor *d = new descriptor;
  d->type = type;
  *result = d;
  std::lock_guard<std::mutex> hold(lock);
  d->serial = ++made;
  alive.insert(d);
  serials.insert(d->serial);
  return MPG_CUDNN_STATUS_SUCCESS;
}
EXPORT cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t which) {
  descriptor *d = checked(which);
  {
    std::lock_guard<std::mutex> hold(lock);
    alive.erase(d);
    serials.erase(d->serial);
  }
  delete d;
  return MPG_CUDNN_STATUS_SUCCESS;
}

EXPORT cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t which,
                                              cudnnBackendAttributeName_t name,
                                              cudnnBackendAttributeType_t type, int64_t count,
                                              const void *values) {
  descriptor *d = checked(which);
  if (d->final || !takes(d, name, type, count)) return MPG_CUDNN_STATUS_BAD_PARAM;
  if (type == MPG_CUDNN_TYPE_BACKEND_DESCRIPTOR)
    for (int64_t i = 0; i < count; i++)
      if (!checked(((const cudnnBackendDescriptor_t *)values)[i])->final)
        return MPG_CUDNN_STATUS_BAD_PARAM;
  const char *bytes = (const char *)values;
  d->attributes[name] =
      attribute{type, count, std::vector<char>(bytes, bytes + (size_t)count * size_of(type))};
  return MPG_CUDNN_STATUS_SUCCESS;
}

EXPORT cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t which) {
  descriptor *d = checked(which);
  if (d->final || !complete(d)) return MPG_CUDNN_STATUS_BAD_PARAM;
  if (d->type == MPG_CUDNN_BACKEND_TENSOR_DESCRIPTOR &&
      d->attributes[MPG_CUDNN_ATTR_TENSOR_DIMENSIONS].count !=
          d->attributes[MPG_CUDNN_ATTR_TENSOR_STRIDES].count)
    return MPG_CUDNN_STATUS_BAD_PARAM;
  if (direction_of(d->type) >= 0 && !sound(d)) return MPG_CUDNN_STATUS_BAD_PARAM;
  convolution whole;
  if (d->type == MPG_CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR && !read_graph(d, &whole))
    return MPG_CUDNN_STATUS_NOT_SUPPORTED;
  if (d->type == MPG_CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR &&
      d->child(MPG_CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)->engine == NEVER)
    return MPG_CUDNN_STATUS_NOT_SUPPORTED;
  d->final = true;
  return MPG_CUDNN_STATUS_SUCCESS;
}

EXPORT cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t which,
                                              cudnnBackendAttributeName_t name,
                                              cudnnBackendAttributeType_t type, int64_t wanted,
                                              int64_t *count, void *values) {
  descriptor *d = checked(which);
  if (!d->final) return MPG_CUDNN_STATUS_BAD_PARAM;
  if (name == MPG_CUDNN_ATTR_ENGINEHEUR_RESULTS && type == MPG_CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    const descriptor *graph = d->child(MPG_CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
    std::vector<int> engines = engines_of(graph_of(graph), d->word(MPG_CUDNN_ATTR_ENGINEHEUR_MODE));
    *count = wanted ? std::min(wanted, (int64_t)engines.size()) : (int64_t)engines.size();
    for (int64_t i = 0; i < *count && wanted; i++) {
      descriptor *config = checked(((cudnnBackendDescriptor_t *)values)[i]);
      if (config->type != MPG_CUDNN_BACKEND_ENGINECFG_DESCRIPTOR) return MPG_CUDNN_STATUS_BAD_PARAM;
      config->final = true;
      config->engine = engines[(size_t)i];
      config->attributes[MPG_CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH] =
          d->attributes[MPG_CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH];
    }
    return MPG_CUDNN_STATUS_SUCCESS;
  }
  if (name == MPG_CUDNN_ATTR_ENGINECFG_ENGINE && type == MPG_CUDNN_TYPE_BACKEND_DESCRIPTOR &&
      wanted == 1 && d->type == MPG_CUDNN_BACKEND_ENGINECFG_DESCRIPTOR) {
    descriptor *engine = checked(*(cudnnBackendDescriptor_t *)values);
    if (engine->type != MPG_CUDNN_BACKEND_ENGINE_DESCRIPTOR) return MPG_CUDNN_STATUS_BAD_PARAM;
    engine->final = true;
    engine->engine = d->engine;
    *count = 1;
    return MPG_CUDNN_STATUS_SUCCESS;
  }
  if (name == MPG_CUDNN_ATTR_ENGINE_NUMERICAL_NOTE && type == MPG_CUDNN_TYPE_NUMERICAL_NOTE &&
      d->type == MPG_CUDNN_BACKEND_ENGINE_DESCRIPTOR) {
    std::vector<int> notes = notes_of(d->engine);
    *count = (int64_t)notes.size();
    for (int64_t i = 0; i < std::min(wanted, *count); i++) ((int *)values)[i] = notes[(size_t)i];
    return MPG_CUDNN_STATUS_SUCCESS;
  }
  if (name == MPG_CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE && type == MPG_CUDNN_TYPE_BEHAVIOR_NOTE &&
      d->type == MPG_CUDNN_BACKEND_ENGINE_DESCRIPTOR) {
    *count = d->engine == COMPILED;
    if (*count && wanted) *(int *)values = MPG_CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION;
    return MPG_CUDNN_STATUS_SUCCESS;
  }
  if (name == MPG_CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE && type == MPG_CUDNN_TYPE_INT64 &&
      wanted == 1 && d->type == MPG_CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) {
    const descriptor *config = d->child(MPG_CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
    *(int64_t *)values = workspace_of(
        graph_of(config->child(MPG_CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH)), config->engine);
    *count = 1;
    return MPG_CUDNN_STATUS_SUCCESS;
  }
  return MPG_CUDNN_STATUS_BAD_PARAM;
}

EXPORT cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan_desc,
                                         cudnnBackendDescriptor_t pack_desc) {
  const descriptor *plan = checked(plan_desc), *pack = checked(pack_desc),
                   *config =
                       checked((void *)plan->child(MPG_CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG));
  const descriptor *graph =
      checked((void *)config->child(MPG_CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH));
  for (int64_t i = 0; i < graph->attributes.at(MPG_CUDNN_ATTR_OPERATIONGRAPH_OPS).count; i++)
    checked(((void *const *)graph->at(MPG_CUDNN_ATTR_OPERATIONGRAPH_OPS))[i]);
  int device;
  cudaGetDevice(&device);
  if (!plan->final || !pack->final) return MPG_CUDNN_STATUS_BAD_PARAM;
  if (device != handle->device ||
      *(cudnnHandle_t *)plan->at(MPG_CUDNN_ATTR_EXECUTION_PLAN_HANDLE) != handle)
    wrong("the handle is another card's, or another plan's");
  work made = {graph_of(graph),
               {},
               *(void *const *)pack->at(MPG_CUDNN_ATTR_VARIANT_PACK_WORKSPACE),
               0,
               hostcuda_captures(handle->stream) ? plan->serial : 0},
       *w = &made;
  static_assert(std::is_trivially_copyable<work>::value, "it is copied byte by byte");
  w->c.engine = config->engine;
  const char *setting = getenv("MPGLUON_CUDA_DETERMINISTIC");
  bool hasty = w->c.engine == HASTY && setting && !strcmp(setting, "0");
  if (!hasty && w->c.engine != ROUNDING && w->c.engine != GOOD)
    wrong("this engine was not to be used");
  w->workspace_bytes = workspace_of(w->c, w->c.engine);
  if (w->workspace_bytes && (!w->workspace || (uintptr_t)w->workspace % 256))
    wrong("the workspace is missing, or not aligned to 256 bytes");
  int64_t count = pack->attributes.at(MPG_CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS).count;
  if (count != 3 + w->c.adds ||
      pack->attributes.at(MPG_CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS).count != count)
    wrong("other arrays than the graph has");
  for (int i = 0; i < count; i++) {
    const tensor &t = i < 3 ? w->c.tensors[i] : w->c.bias;
    for (int k = 0; k < count; k++)
      if (((const int64_t *)pack->at(MPG_CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS))[k] == t.id)
        w->arrays[i] = ((void *const *)pack->at(MPG_CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS))[k];
    if (!w->arrays[i] || (uintptr_t)w->arrays[i] % (uintptr_t)t.alignment)
      wrong("an array is missing, or not aligned as its tensor says");
  }
  return hostcuda_put(handle->stream, convolve, w, sizeof *w) == cudaSuccess
             ? MPG_CUDNN_STATUS_SUCCESS
             : MPG_CUDNN_STATUS_INTERNAL_ERROR;
}

// Returns the major (which = 0), minor or patch version.
extern "C" __attribute__((visibility("default"))) int cudnnGetProperty(int which, int *value) {
  *value = which ? 0 : 9;
  return 0;
}
