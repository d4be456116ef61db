/* Fused groups (op/fused.h) in one pass: a small program, made of the group when it is called, that
 * every thread runs on ELEMENTS neighbouring elements.
 *
 * Values are floats in a thread's own registers (an array, as the program names them by number),
 * rounded to their dtype after each member, so that an element's bits are those of the members' own
 * kernels. What is read is loaded where it is first needed, what is wanted outside stored where it
 * is made. A value that stands still along some dims is computed by everyone who needs it and
 * stored by one. `fuses` says which ops may be in a group: those of one and two arrays whose
 * formulas are in kernels/common, casts, copies and broadcasts, of float32, float16 and bfloat16.
 * Others run by themselves. With NVRTC the program becomes a kernel of its own (specialise.h); else
 * the one here interprets it.
 */
#include "kernels/cuda/fusion/generated.h"

#include "kernels/cuda/cuda.h"
extern "C" {
#include "kernels/common/unary_constants.h"
#include "kernels/cuda/fusion/specialise.h"
}

namespace {

enum { ELEMENTS = MPG_GROUP_ELEMENTS };
typedef mpg_step step;
typedef mpg_step_operand operand;

template <int STEPS, int OPERANDS, int CONSTANTS, int REGISTERS>
struct program {
  enum {
    MAX_STEPS = STEPS,
    MAX_OPERANDS = OPERANDS,
    MAX_CONSTANTS = CONSTANTS,
    MAX_REGISTERS = REGISTERS
  };
  int num_steps, num_operands, num_constants, num_registers, ndim;
  int64_t dims[MPG_MAX_NDIM], count;
  step steps[STEPS];
  operand operands[OPERANDS];
  float constants[CONSTANTS];
};
typedef program<64, 16, 24, 16> small_program;
typedef program<MPG_FUSED_MAX_MEMBERS + 2 * MPG_FUSED_MAX_VALUES, MPG_FUSED_MAX_VALUES,
                3 * MPG_FUSED_MAX_MEMBERS, MPG_FUSED_MAX_VALUES>
    large_program;

/* --- What members compute --------------------------------------------------------------------- */
namespace unary {
enum number : uint8_t {
#define FLOAT_ROWS(name, expression_f, expression_d) number_##name,
#include "kernels/common/unary.def"
};
} // namespace unary
namespace binary {
enum number : uint8_t {
#define FLOAT_ROWS(name, expression_f, expression_d) number_##name,
#include "kernels/common/binary.def"
};
} // namespace binary

__device__ void run_unary(int row, const float *x, const float *constants, float *y) {
  switch (row) {
#define FLOAT_ROWS(name, expression_f, expression_d)              \
  case unary::number_##name:                                      \
    _Pragma("unroll 1") for (int k = 0; k < ELEMENTS; k++) y[k] = \
        mpg_unary::name::at(x[k], constants);                     \
    break;
#include "kernels/common/unary.def"
  }
}
__device__ void run_binary(int row, const float *x, const float *y, float *z) {
  switch (row) {
#define FLOAT_ROWS(name, expression_f, expression_d)                                              \
  case binary::number_##name:                                                                     \
    _Pragma("unroll") for (int k = 0; k < ELEMENTS; k++) z[k] = mpg_binary::name::at(x[k], y[k]); \
    break;
#include "kernels/common/binary.def"
  }
}

/* --- The kernel ------------------------------------------------------------------------------- */
/* Where element i of the domain is in an operand; false: where it moves it is another element's to
 * store. */
template <class U>
__device__ bool find_place(int ndim, const int64_t *dims, uint32_t varying, int64_t i,
                           int64_t *place) {
  U rest = (U)i;
  int64_t at = 0, distance = 1;
  bool first = true;
  for (int d = ndim - 1; d >= 0; d--) {
    U next = d ? rest / (U)dims[d] : 0, index = rest - next * (U)dims[d];
    rest = next;
    if (varying >> d & 1) {
      at += (int64_t)index * distance;
      distance *= dims[d];
    } else if (index) {
      first = false;
    }
  }
  *place = at;
  return first;
}
template <class P>
__device__ bool place_of(const P &p, const operand &o, int64_t i, int64_t *place) {
  *place = i;
  if (o.whole) return true;
  return p.count <= 0x7fffffff ? find_place<uint32_t>(p.ndim, p.dims, o.varying, i, place)
                               : find_place<uint64_t>(p.ndim, p.dims, o.varying, i, place);
}

template <class T, class P>
__device__ void load(const P &p, const operand &o, int64_t begin, int count, float *to) {
  const T *data = (const T *)o.data;
  int64_t place;
  if (o.packed && count == ELEMENTS) {
    mpg_few<T> all = ((const mpg_few<T> *)data)[begin / ELEMENTS];
#pragma unroll
    for (int k = 0; k < ELEMENTS; k++) to[k] = mpg_to<float>(all.values[k]);
    return;
  }
  for (int k = 0; k < ELEMENTS; k++) {
    if (k < count) place_of(p, o, begin + k, &place);
    to[k] = k < count ? mpg_to<float>(data[place]) : 0.0f;
  }
}
template <class T, class P>
__device__ void store(const P &p, const operand &o, int64_t begin, int count, const float *from) {
  T *data = (T *)o.data;
  int64_t place;
  if (o.packed && count == ELEMENTS) {
    mpg_few<T> all;
#pragma unroll
    for (int k = 0; k < ELEMENTS; k++) all.values[k] = mpg_to<T>(from[k]);
    ((mpg_few<T> *)data)[begin / ELEMENTS] = all;
    return;
  }
  for (int k = 0; k < count; k++)
    if (place_of(p, o, begin + k, &place)) data[place] = mpg_to<T>(from[k]);
}

#define BY_DTYPE(dtype, T, ...)                                \
  switch (dtype) {                                             \
    MPG_CUDA_CASE_(MPG_FLOAT16, mpg_half, T, __VA_ARGS__)      \
    MPG_CUDA_CASE_(MPG_BFLOAT16, mpg_bfloat16, T, __VA_ARGS__) \
    default: {                                                 \
      typedef float T;                                         \
      __VA_ARGS__;                                             \
      break;                                                   \
    }                                                          \
  }

template <class P>
__global__ void fused_kernel(P p) {
  int64_t begin = MPG_CUDA_INDEX * ELEMENTS;
  if (begin >= p.count) return;
  int count = p.count - begin < ELEMENTS ? (int)(p.count - begin) : ELEMENTS;
  float registers[P::MAX_REGISTERS][ELEMENTS], fixed[ELEMENTS];
  for (int s = 0; s < p.num_steps; s++) {
    const step now = p.steps[s];
    float *to = registers[now.to];
    switch (now.kind) {
      case MPG_STEP_LOAD:
        BY_DTYPE(now.dtype, T, load<T>(p, p.operands[now.a], begin, count, to));
        continue;
      case MPG_STEP_STORE:
        BY_DTYPE(now.dtype, T, store<T>(p, p.operands[now.b], begin, count, registers[now.a]));
        continue;
      case MPG_STEP_UNARY:
        run_unary(now.row, registers[now.a], p.constants + now.constant, to);
        break;
      case MPG_STEP_BINARY:
        for (int k = 0; k < ELEMENTS; k++) fixed[k] = now.fixed ? p.constants[now.constant] : 0.0f;
        run_binary(now.row, now.fixed == MPG_STEP_FIXED_A ? fixed : registers[now.a],
                   now.fixed == MPG_STEP_FIXED_B ? fixed : registers[now.b], to);
        break;
      default:
        for (int k = 0; k < ELEMENTS; k++) to[k] = registers[now.a][k];
        break;
    }
    BY_DTYPE(now.dtype, T,
             for (int k = 0; k < ELEMENTS; k++) to[k] = mpg_to<float>(mpg_to<T>(to[k])));
  }
}

/* --- Programs --------------------------------------------------------------------------------- */
struct meaning { /* of an op, with its parameters */
  uint8_t kind;
  uint8_t row, fixed;
  int num_constants;
  double constants[MPG_UNARY_CONSTANTS];
};

bool meaning_of(const mpg_op *op, const void *params, int num_inputs, meaning *m) {
  *m = meaning{};
  switch (op->id) {
    case MPG_OP_Cast:
    case MPG_OP_amp_cast:
    case MPG_OP__copyto:
    case MPG_OP_broadcast_to:
    case MPG_OP_broadcast_axis:
    case MPG_OP__broadcast_exact: m->kind = MPG_STEP_ROUND; return true;
    case MPG_OP__contrib_div_sqrt_dim: return false; /* its factor is the shape's */
    case MPG_OP_Activation: {
      static const uint8_t rows[] = {unary::number_relu, unary::number_sigmoid,
                                     unary::number_hyperbolic_tangent, unary::number_softrelu,
                                     unary::number_softsign};
      m->kind = MPG_STEP_UNARY;
      m->row = rows[((const mpg_activation_params *)params)->act_type];
      return true;
    }
    case MPG_OP__power_scalar:
      if (((const mpg_scalar_params *)params)->scalar == 2) { /* x * x, as by itself */
        *m = {MPG_STEP_UNARY, unary::number_square, 0, 0, {}};
        return true;
      }
      break;
    default: break;
  }
  switch (op->id) {
#define UNARY(id, name, kind)                                               \
  case MPG_OP_##id:                                                         \
    *m = {MPG_STEP_UNARY, unary::number_##name, 0, 0, {}};                  \
    m->num_constants = mpg_unary_constants(op, params, NULL, m->constants); \
    return true;
#include "kernels/common/unary.def"
#define BINARY(op, name, kind_, swap, dear)           \
  case MPG_OP_##op:                                   \
    *m = {MPG_STEP_BINARY,                            \
          binary::number_##name,                      \
          swap ? MPG_STEP_FIXED_A : MPG_STEP_FIXED_B, \
          0,                                          \
          {}};                                        \
    break;
#include "kernels/common/binary.def"
    default: return false;
  }
  if (num_inputs == 2) {
    m->fixed = MPG_STEP_NOT_FIXED;
  } else {
    m->num_constants = 1;
    m->constants[0] = ((const mpg_scalar_params *)params)->scalar;
  }
  return true;
}

bool is_computed(mpg_dtype dtype) {
  return dtype == MPG_FLOAT32 || dtype == MPG_FLOAT16 || dtype == MPG_BFLOAT16;
}

template <class P>
struct builder {
  P p;
  const mpg_kernel_call *call;
  const mpg_fused *fused;
  uint8_t register_of[MPG_FUSED_MAX_VALUES], free_registers[MPG_FUSED_MAX_VALUES];
  uint8_t last_read[MPG_FUSED_MAX_VALUES]; /* the member; 255: none */
  bool there[MPG_FUSED_MAX_VALUES];
  int num_free;
  bool fits;
  step nowhere; /* those that do not fit */

  step *add(uint8_t kind, mpg_dtype dtype) {
    fits &= p.num_steps < P::MAX_STEPS;
    step *s = fits ? &p.steps[p.num_steps++] : &nowhere;
    *s = step{};
    s->kind = kind;
    s->dtype = (uint8_t)dtype;
    return s;
  }
  uint8_t take() {
    if (num_free) return free_registers[--num_free];
    fits &= p.num_registers < P::MAX_REGISTERS;
    return fits ? (uint8_t)p.num_registers++ : 0;
  }
  void release(uint32_t v) {
    there[v] = false;
    free_registers[num_free++] = register_of[v];
  }
  uint8_t operand_of(uint32_t v) {
    const mpg_fused_value &value = fused->values[v];
    fits &= p.num_operands < P::MAX_OPERANDS;
    if (!fits) return 0;
    operand *o = &p.operands[p.num_operands];
    uint32_t inputs = (uint32_t)call->num_inputs;
    o->data = value.operand < inputs ? call->inputs[value.operand].data
                                     : call->outputs[value.operand - inputs].data;
    o->varying = value.varying;
    o->dtype = (uint8_t)value.dtype;
    o->whole = value.varying == (1u << fused->ndim) - 1;
    o->packed = o->whole && (uintptr_t)o->data % (ELEMENTS * mpg_dtype_size(value.dtype)) == 0;
    return (uint8_t)p.num_operands++;
  }
  uint8_t read(uint32_t v) {
    if (!there[v]) {
      register_of[v] = take();
      there[v] = true;
      step *s = add(MPG_STEP_LOAD, fused->values[v].dtype);
      s->to = register_of[v];
      s->a = operand_of(v);
    }
    return register_of[v];
  }
  void release_read(const uint32_t *inputs, uint32_t count, uint32_t k) {
    for (uint32_t i = 0; i < count; i++)
      if (there[inputs[i]] && last_read[inputs[i]] == k) release(inputs[i]);
  }

  /* False: it does not fit. */
  bool build() {
    p.ndim = fused->ndim;
    p.count = 1;
    for (int d = 0; d < fused->ndim; d++) p.count *= p.dims[d] = fused->dims[d];
    memset(last_read, 255, sizeof last_read);
    for (uint32_t k = 0; k < fused->num_members; k++)
      for (uint32_t i = 0; i < fused->members[k].num_inputs; i++)
        last_read[fused->operands[fused->members[k].operands + i]] = (uint8_t)k;
    fits = true;
    for (uint32_t k = 0; k < fused->num_members && fits; k++) {
      const mpg_fused_member &member = fused->members[k];
      const uint32_t *inputs = fused->operands + member.operands, out = inputs[member.num_inputs];
      mpg_dtype dtype = fused->values[out].dtype;
      meaning m;
      if (!meaning_of(member.op, member.params, (int)member.num_inputs, &m)) return false;
      uint8_t a = read(inputs[0]), b = member.num_inputs == 2 ? read(inputs[1]) : 0;
      fits &= p.num_constants + m.num_constants <= P::MAX_CONSTANTS;
      release_read(inputs, member.num_inputs,
                   k); /* the result may take its place: element by element */
      step *s = add(m.kind, dtype);
      if (!fits) break;
      s->row = m.row;
      s->a = m.fixed == MPG_STEP_FIXED_A ? 0 : a;
      s->b = m.fixed == MPG_STEP_FIXED_A ? a : b;
      s->fixed = m.fixed;
      s->constant = (uint8_t)p.num_constants;
      for (int i = 0; i < m.num_constants; i++) {
        float value = (float)m.constants[i];
        if (m.kind == MPG_STEP_BINARY)
          BY_DTYPE(dtype, T,
                   value = mpg_to<float>(mpg_to<T>(m.constants[i]))); /* as an element has it */
        p.constants[p.num_constants++] = value;
      }
      s->to = register_of[out] = take();
      there[out] = true;
      if (fused->values[out].operand != MPG_FUSED_LOCAL) {
        uint8_t from = register_of[out];
        s = add(MPG_STEP_STORE, dtype);
        s->a = from;
        s->b = operand_of(out);
      }
      if (last_read[out] == 255) release(out);
    }
    return fits;
  }
};

/* What is written while others still read it, as it stands still along some dims, is read from a
 * copy. */
mpg_status separate(const mpg_kernel_call *call, operand *operands, const step *steps,
                    int num_steps, const int64_t *dims, int ndim) {
  for (int pass = 0; pass < 2; pass++) {
    size_t total = 0;
    char *scratch = NULL;
    for (int i = 0; i < num_steps; i++) {
      if (steps[i].kind != MPG_STEP_LOAD || operands[steps[i].a].whole) continue;
      operand *in = &operands[steps[i].a];
      bool written = false;
      for (int k = 0; k < num_steps; k++)
        written |= steps[k].kind == MPG_STEP_STORE && operands[steps[k].b].data == in->data;
      if (!written) continue;
      size_t bytes = mpg_dtype_size((mpg_dtype)in->dtype);
      for (int d = 0; d < ndim; d++)
        if (in->varying >> d & 1) bytes *= (size_t)dims[d];
      if (pass) {
        if (!scratch && !(scratch = (char *)mpg_device_scratch(call->device, 0)))
          return MPG_DEVICE_OUT_OF_MEMORY;
        MPG_TRY(mpg_cuda_copy(call, in->data, scratch + total, bytes));
        in->data = scratch + total;
      }
      total += mpg_align_up(bytes, 256);
    }
    if (!total) return MPG_OK;
    if (!pass && !mpg_device_scratch(call->device, total)) return MPG_DEVICE_OUT_OF_MEMORY;
  }
  return MPG_OK;
}

template <class P>
bool run(const mpg_kernel_call *call, mpg_status *status) {
  builder<P> b = {};
  b.call = call;
  b.fused = (const mpg_fused *)call->params;
  if (!b.build()) return false;
  *status = separate(call, b.p.operands, b.p.steps, b.p.num_steps, b.p.dims, b.p.ndim);
  mpg_step_program same = {b.p.num_steps, b.p.num_operands, b.p.num_constants, b.p.num_registers,
                           b.p.ndim,      b.p.count,        b.p.dims,          b.p.steps,
                           b.p.operands,  b.p.constants};
  bool done = false;
  if (*status == MPG_OK) *status = mpg_cuda_run_specialised(call, &same, &done);
  if (*status == MPG_OK && !done)
    *status = mpg_cuda_launch(call, fused_kernel<P>,
                              mpg_cuda_blocks(b.p.count, MPG_CUDA_THREADS * ELEMENTS),
                              MPG_CUDA_THREADS, 0, b.p);
  return true;
}

} // namespace

extern "C" mpg_status mpg_cuda_fused(const mpg_kernel_call *call) {
  mpg_status status = MPG_OK;
  if (run<small_program>(call, &status) || run<large_program>(call, &status)) return status;
  return mpg_fail(MPG_ERROR, "internal: the fused group %s has members that GPUs do not fuse",
                  ((const mpg_fused *)call->params)->name);
}

extern "C" bool mpg_cuda_fuses(const mpg_op *op, const void *params, const mpg_dtype *dtypes,
                               int count) {
  meaning m;
  if (count < 2 || count > 3 || !meaning_of(op, params, count - 1, &m)) return false;
  for (int i = 0; i < count; i++)
    if (!is_computed(dtypes[i]) || (m.kind != MPG_STEP_ROUND && dtypes[i] != dtypes[0]))
      return false;
  return true;
}
