/* Runs a fused group of ops, its members, as one kernel (op/fused.h). Each call translates the
 * group to a small program of steps, for which specialise.cu provides a compiled kernel. Each
 * thread runs the program on MPG_GROUP_ELEMENTS adjacent elements.
 *
 * Values are floats in a thread's registers. They are rounded to their dtype after each member, so
 * that results are bit-identical to those of separate kernels for the members. Inputs are loaded at
 * their first use, and outputs are stored when they are computed. A value that is broadcast along
 * some dims is computed by every thread that needs it and stored by one of them.
 *
 * `fuses` decides which ops a group may contain: unary and binary ops with formulas in
 * kernels/common, casts, copies, broadcasts, dropout, sums, means and extrema of rows, LayerNorm,
 * the softmax family and their gradients, for float32, float16 and bfloat16, if NVRTC is available.
 * All other ops run separately. The registers of a dropout mask hold 1 or 0.
 *
 * In a group with rows, elements are distributed over threads as in the ops' own kernels
 * (math/reduce.cu, math/softmax.cu, norm/norm.cu), so that sums have the same order. The result
 * of a reduction is available in all threads of the row. Ops on rows are expanded to steps on
 * floats, without rounding between the steps of an op. The gradients of LayerNorm's gamma and beta
 * are sums over rows: blocks store partial sums in scratch memory, which a second kernel adds.
 */
#include "kernels/cuda/fusion/generated.h"

#include "kernels/cuda/rows.h"
extern "C" {
#include "kernels/common/formula.h"
#include "kernels/common/reduce.h"
#include "kernels/cuda/fusion/specialise.h"
#include "kernels/cuda/norm/norm.h"
}
#include "op/math/rows.h"

namespace {

typedef mpg_step step;
typedef mpg_step_operand operand;

/* --- Members ---------------------------------------------------------------------------------- */
/* Member kinds in addition to mpg_step_kind. Each expands to several steps. For example, DROPOUT
 * expands to DRAW and DROP. */
const uint8_t DROPOUT = 128, LAYER_NORM = 129, LAYER_NORM_BACK = 130, SOFTMAX = 131,
              LOG_SOFTMAX = 132, SOFTMAX_BACK = 133, LOG_SOFTMAX_BACK = 134;
/* Translation of an op and its parameters. `kind` is an mpg_step_kind or one of the kinds above.
 * `row` and `fixed` are as in mpg_step. `mean` is 1 if a reduction is a mean. */
struct meaning {
  uint8_t kind, row, fixed, mean;
  int num_constants;
  double constants[MPG_UNARY_CONSTANTS];
};

double inverse_of(const mpg_opt_float &temperature) {
  return temperature.present ? 1 / temperature.value : 1;
}

/* Returns the member kind of an op on rows. *constant receives the scale of a softmax or the
 * epsilon of a LayerNorm. */
uint8_t rows_kind(const mpg_op *op, const void *params, double *constant) {
  switch (op->id) {
    case MPG_OP_softmax:
    case MPG_OP_softmin:
      *constant = inverse_of(((const mpg_softmax_params *)params)->temperature);
      if (op->id == MPG_OP_softmin) *constant = -*constant;
      return SOFTMAX;
    case MPG_OP_log_softmax:
      *constant = inverse_of(((const mpg_log_softmax_params *)params)->temperature);
      return LOG_SOFTMAX;
    case MPG_OP_LayerNorm:
      *constant = ((const mpg_layer_norm_params *)params)->eps;
      return LAYER_NORM;
    case MPG_OP__backward_LayerNorm: return LAYER_NORM_BACK;
    default:
      *constant = ((const mpg_softmax_back_params *)params)->scale;
      return op->id == MPG_OP__softmax_backward ? SOFTMAX_BACK : LOG_SOFTMAX_BACK;
  }
}

bool meaning_of(const mpg_op *op, const void *params, int num_inputs, meaning *m) {
  const mpg_formula formula = mpg_formula_of(op, params);
  mpg_rows rows;
  *m = meaning{};
  if (mpg_rows_of(op, params, &rows)) {
    m->num_constants = 1;
    m->kind = rows_kind(op, params, m->constants);
    return true;
  }
  if (op->flags & MPG_OP_REDUCTION) {
    const mpg_reduction reduction = mpg_reduction_of(op, params);
    m->kind = MPG_STEP_REDUCE;
    m->row = (uint8_t)reduction.how;
    m->mean = reduction.mean;
    return reduction.how != MPG_MULTIPLY && reduction.prepare == MPG_PLAIN && !reduction.root;
  }
  if (op->id == MPG_OP_Dropout || op->id == MPG_OP__dropout_apply) {
    const double p = ((const mpg_dropout_params *)params)->p;
    m->kind = op->id == MPG_OP_Dropout ? DROPOUT : (uint8_t)MPG_STEP_DROP;
    m->constants[m->num_constants++] = mpg_dropout_scale(p);
    if (m->kind == DROPOUT) m->constants[m->num_constants++] = mpg_dropout_threshold(p);
    return true;
  }
  m->row = (uint8_t)formula.id;
  if (formula.id == MPG_FORMULA_COPY) {
    m->kind = MPG_STEP_ROUND;
    return num_inputs == 1;
  }
  if (mpg_formula_is_unary(formula.id)) {
    m->kind = MPG_STEP_UNARY;
    m->num_constants = mpg_unary_constants(op, params, NULL, m->constants);
    return true;
  }
  if (!mpg_formula_is_binary(formula.id)) return false;
  m->kind = MPG_STEP_BINARY;
  if (num_inputs == 1 && !formula.of_itself) {
    m->fixed = formula.swap ? MPG_STEP_FIXED_A : MPG_STEP_FIXED_B;
    m->num_constants = 1;
    m->constants[0] = ((const mpg_scalar_params *)params)->scalar;
  }
  return true;
}

bool is_computed(mpg_dtype dtype) {
  return dtype == MPG_FLOAT32 || dtype == MPG_FLOAT16 || dtype == MPG_BFLOAT16;
}

/* --- Programs --------------------------------------------------------------------------------- */
/* Rounds a constant to the dtype. */
float rounded(double value, mpg_dtype dtype) {
  switch (dtype) {
    case MPG_FLOAT16: return mpg_to<float>(mpg_to<mpg_half>(value));
    case MPG_BFLOAT16: return mpg_to<float>(mpg_to<mpg_bfloat16>(value));
    default: return (float)value;
  }
}

/* Translates a group to a program. Arrays need no bounds checks: each value has at most one
 * register and one operand, and each member has a bounded number of constants. */
struct builder {
  mpg_step_program p;
  const mpg_kernel_call *call;
  const mpg_fused *fused;
  uint8_t register_of[MPG_FUSED_MAX_VALUES], free_registers[256], temporaries[256];
  uint8_t last_read[MPG_FUSED_MAX_VALUES]; /* last member that reads the value; 255 if none */
  bool there[MPG_FUSED_MAX_VALUES];        /* true if the value is in its register */
  int num_free, num_temporaries;
  /* LayerNorm outputs that receive each pair of column sums. */
  struct {
    void *dgamma, *dbeta;
    mpg_dtype dtype;
  } sums[MPG_STEP_MAX_SHARES];

  explicit builder(const mpg_kernel_call *call_)
      : call(call_), fused((const mpg_fused *)call_->params), num_free(0), num_temporaries(0) {
    memset(last_read, 255, sizeof last_read);
    memset(there, 0, sizeof there);
    p.num_steps = p.num_operands = p.num_constants = p.num_registers = 0;
    p.num_draws = (int)fused->num_draws;
    p.num_shares = p.block_rows = 0;
    p.shares = NULL;
    p.ndim = fused->ndim;
    p.count = 1;
    for (int d = 0; d < p.ndim; d++) p.count *= p.dims[d] = fused->dims[d];
    p.row = 0, p.each = MPG_GROUP_ELEMENTS, p.packs = 1, p.lanes = MPG_CUDA_THREADS;
    if (fused->row) take_rows();
  }
  /* Sets the layout of rows to the one that mpg_with_row chooses for the members' own kernels. */
  void take_rows() {
    p.row = 1;
    for (int d = 0; d < p.ndim; d++)
      if (fused->row >> d & 1) p.row *= (int)p.dims[d];
    auto take = [&](auto row) {
      typedef decltype(row) R;
      p.each = R::EACH, p.packs = R::SIZE / R::EACH, p.lanes = R::THREADS;
      return MPG_OK;
    };
    switch (fused->row_dtype) {
      case MPG_FLOAT16: mpg_with_row<mpg_half>(p.row, true, take); break;
      case MPG_BFLOAT16: mpg_with_row<mpg_bfloat16>(p.row, true, take); break;
      default: mpg_with_row<float>(p.row, true, take); break;
    }
  }
  step *add(uint8_t kind, mpg_dtype dtype) {
    step *s = &p.steps[p.num_steps++];
    *s = step{};
    s->kind = kind;
    s->dtype = (uint8_t)dtype;
    return s;
  }
  uint8_t take() { return num_free ? free_registers[--num_free] : (uint8_t)p.num_registers++; }
  void release(uint32_t v) {
    there[v] = false;
    free_registers[num_free++] = register_of[v];
  }
  uint8_t operand_of(uint32_t v) {
    const mpg_fused_value &value = fused->values[v];
    operand *o = &p.operands[p.num_operands];
    o->data = data_of(v);
    o->varying = value.varying;
    o->dtype = (uint8_t)value.dtype;
    o->whole = value.varying == (1u << fused->ndim) - 1;
    o->by_row = fused->row && !(value.varying & fused->row);
    int64_t together = 1; /* length of runs that are contiguous in the operand and the domain */
    for (int d = p.ndim - 1; d >= 0 && (value.varying >> d & 1); d--) together *= p.dims[d];
    size_t bytes = (size_t)p.each * mpg_dtype_size(value.dtype);
    o->packed = (o->whole || together % p.each == 0) && p.row % p.each == 0 &&
                (uintptr_t)o->data % (bytes < 16 ? bytes : 16) == 0;
    return (uint8_t)p.num_operands++;
  }
  void *data_of(uint32_t v) {
    const mpg_fused_value &value = fused->values[v];
    uint32_t inputs = (uint32_t)call->num_inputs;
    return value.operand == MPG_FUSED_LOCAL ? NULL
           : value.operand < inputs         ? call->inputs[value.operand].data
                                            : call->outputs[value.operand - inputs].data;
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
  uint8_t constant(float value) {
    p.constants[p.num_constants] = value;
    return (uint8_t)p.num_constants++;
  }
  void store(uint32_t v, uint8_t operand) {
    if (fused->values[v].operand == MPG_FUSED_LOCAL) return;
    step *s = add(MPG_STEP_STORE, fused->values[v].dtype);
    s->a = register_of[v];
    s->b = operand;
  }
  /* Adds the step that draws a Dropout mask, and stores the mask if it is an output. Returns the
   * mask's register. */
  uint8_t draw(const mpg_fused_member &member, uint32_t mask, const meaning &m) {
    step *s = add(MPG_STEP_DRAW, MPG_UINT8);
    s->row = (uint8_t)member.draw;
    s->a = operand_of(mask);
    s->constant = constant((float)m.constants[1]);
    s->to = register_of[mask] = take();
    there[mask] = true;
    store(mask, s->a);
    return s->to;
  }

  /* Adds a step that stores its result in a new temporary register. compute_rows releases all
   * temporaries at the end of the member. */
  step *make(uint8_t kind, uint8_t a) {
    step *s = add(kind, MPG_FLOAT32);
    s->a = a;
    s->to = temporaries[num_temporaries++] = take();
    return s;
  }
  uint8_t map(uint8_t kind, uint8_t a) { return make(kind, a)->to; }
  uint8_t unary(mpg_formula_id id, uint8_t a) {
    step *s = make(MPG_STEP_UNARY, a);
    s->row = (uint8_t)id;
    return s->to;
  }
  uint8_t binary(mpg_formula_id id, uint8_t a, uint8_t b) {
    step *s = make(MPG_STEP_BINARY, a);
    s->row = (uint8_t)id;
    s->b = b;
    return s->to;
  }
  uint8_t binary_with(mpg_formula_id id, uint8_t a, double b) {
    step *s = make(MPG_STEP_BINARY, a);
    s->row = (uint8_t)id;
    s->fixed = MPG_STEP_FIXED_B;
    s->constant = constant((float)b);
    return s->to;
  }
  uint8_t sub(uint8_t a, uint8_t b) { return binary(MPG_BINARY_sub, a, b); }
  uint8_t mul(uint8_t a, uint8_t b) { return binary(MPG_BINARY_mul, a, b); }
  uint8_t scale(uint8_t a, double by) { return by == 1 ? a : binary_with(MPG_BINARY_mul, a, by); }
  uint8_t reduce(uint8_t how, uint8_t a, bool mean) {
    step *s = make(MPG_STEP_REDUCE, a);
    s->row = how;
    s->b = mean;
    return s->to;
  }
  /* True if a value is an output of the group or is read by a member. */
  bool is_wanted(uint32_t v) {
    return v != MPG_FUSED_LOCAL &&
           (last_read[v] != 255 || fused->values[v].operand != MPG_FUSED_LOCAL);
  }
  /* Rounds a value in register `a`, and stores it if it is an output. */
  void put(uint32_t v, uint8_t a) {
    if (!is_wanted(v)) return;
    step *s = add(MPG_STEP_ROUND, fused->values[v].dtype);
    s->a = a;
    s->to = register_of[v] = take();
    there[v] = true;
    if (fused->values[v].operand != MPG_FUSED_LOCAL) store(v, operand_of(v));
    if (last_read[v] == 255) release(v);
  }

  void layer_norm(const uint32_t *in, const uint32_t *out, double eps) {
    uint8_t x = read(in[0]), mean = reduce(MPG_ADD, x, true), away = sub(x, mean),
            variance = reduce(MPG_ADD, mul(away, away), true),
            deviation = unary(MPG_UNARY_square_root, binary_with(MPG_BINARY_add, variance, eps));
    if (is_wanted(out[0])) {
      uint8_t scaled = mul(mul(away, unary(MPG_UNARY_reciprocal, deviation)), read(in[1]));
      put(out[0], binary(MPG_BINARY_add, scaled, read(in[2])));
    }
    put(out[1], mean);
    put(out[2], deviation);
  }
  void layer_norm_back(const uint32_t *in, const uint32_t *out) {
    uint8_t dy = read(in[0]), x = read(in[1]), inverse = unary(MPG_UNARY_reciprocal, read(in[4])),
            away = sub(x, read(in[3]));
    auto &pair = sums[p.num_shares / 2];
    pair = {out[1] == MPG_FUSED_LOCAL ? NULL : data_of(out[1]),
            out[2] == MPG_FUSED_LOCAL ? NULL : data_of(out[2]), fused->values[in[0]].dtype};
    if (pair.dgamma || pair.dbeta) {
      share(mul(dy, mul(away, inverse)));
      share(dy);
    }
    if (!is_wanted(out[0])) return;
    uint8_t g = mul(dy, read(in[2])), offset = reduce(MPG_ADD, g, true),
            slope = mul(mul(reduce(MPG_ADD, mul(g, away), true), inverse), inverse);
    put(out[0], mul(sub(sub(g, offset), mul(away, slope)), inverse));
  }
  void share(uint8_t a) {
    step *s = add(MPG_STEP_SHARE, MPG_FLOAT32);
    s->a = a;
    s->row = (uint8_t)p.num_shares++;
  }
  void softmax(const uint32_t *in, const uint32_t *out, double by, bool logarithm) {
    uint8_t x = scale(read(in[0]), by), below = sub(x, reduce(MPG_STEP_NUMBERS, x, false)),
            power = map(MPG_STEP_EXP, below), sum = reduce(MPG_ADD, power, false);
    put(out[0], logarithm ? sub(below, map(MPG_STEP_LOG, sum))
                          : mul(power, unary(MPG_UNARY_reciprocal, sum)));
  }
  void softmax_back(const uint32_t *in, const uint32_t *out, double by, bool logarithm) {
    uint8_t g = read(in[0]), y = read(in[1]),
            sum = reduce(MPG_ADD, logarithm ? g : mul(g, y), false);
    put(out[0],
        scale(logarithm ? sub(g, mul(map(MPG_STEP_EXP, y), sum)) : mul(y, sub(g, sum)), by));
  }
  void compute_rows(const mpg_fused_member &member, uint32_t k, const meaning &m) {
    const uint32_t *in = fused->operands + member.operands, *out = in + member.num_inputs;
    switch (m.kind) {
      case LAYER_NORM: layer_norm(in, out, m.constants[0]); break;
      case LAYER_NORM_BACK: layer_norm_back(in, out); break;
      case SOFTMAX:
      case LOG_SOFTMAX: softmax(in, out, m.constants[0], m.kind == LOG_SOFTMAX); break;
      default: softmax_back(in, out, m.constants[0], m.kind == LOG_SOFTMAX_BACK); break;
    }
    for (uint32_t i = 0; i < member.num_inputs; i++)
      if (there[in[i]] && last_read[in[i]] == k) release(in[i]);
    while (num_temporaries) free_registers[num_free++] = temporaries[--num_temporaries];
  }

  void compute(const mpg_fused_member &member, uint32_t k, const meaning &m) {
    const uint32_t *inputs = fused->operands + member.operands, out = inputs[member.num_inputs],
                   mask = m.kind == DROPOUT ? inputs[member.num_inputs + 1] : 0;
    mpg_dtype dtype = fused->values[out].dtype;
    uint8_t a = read(inputs[0]), b = member.num_inputs == 2 ? read(inputs[1]) : a;
    if (m.kind == DROPOUT) b = draw(member, mask, m);
    for (uint32_t i = 0; i < member.num_inputs; i++) /* the result may reuse an input's register */
      if (there[inputs[i]] && last_read[inputs[i]] == k) release(inputs[i]);
    if (m.kind == DROPOUT && last_read[mask] == 255) release(mask);
    step *s = add(m.kind == DROPOUT ? (uint8_t)MPG_STEP_DROP : m.kind, dtype);
    s->row = m.row;
    s->a = m.fixed == MPG_STEP_FIXED_A ? 0 : a;
    s->b = m.kind == MPG_STEP_REDUCE ? m.mean : m.fixed == MPG_STEP_FIXED_A ? a : b;
    s->fixed = m.fixed;
    s->constant = (uint8_t)p.num_constants;
    for (int i = 0; i < (m.kind == DROPOUT ? 1 : m.num_constants); i++)
      constant(m.kind == MPG_STEP_BINARY ? rounded(m.constants[i], dtype) : (float)m.constants[i]);
    s->to = register_of[out] = take();
    there[out] = true;
    if (fused->values[out].operand != MPG_FUSED_LOCAL) store(out, operand_of(out));
    if (last_read[out] == 255) release(out);
  }
  mpg_status build() {
    for (uint32_t k = 0; k < fused->num_members; k++)
      for (uint32_t i = 0; i < fused->members[k].num_inputs; i++)
        last_read[fused->operands[fused->members[k].operands + i]] = (uint8_t)k;
    for (uint32_t k = 0; k < fused->num_members; k++) {
      const mpg_fused_member &member = fused->members[k];
      meaning m;
      if (!meaning_of(member.op, member.params, (int)member.num_inputs, &m))
        return mpg_fail(MPG_ERROR, "internal: the fused group %s has members that GPUs cannot fuse",
                        fused->name);
      if (m.kind >= LAYER_NORM)
        compute_rows(member, k, m);
      else
        compute(member, k, m);
    }
    return MPG_OK;
  }
};

/* True if a group may contain the member, given the dtypes of its `count` arrays (inputs, then
 * outputs). */
bool is_taken(const meaning &m, const mpg_dtype *dtypes, int count) {
  if (m.kind >= LAYER_NORM) {
    const int counts[] = {6, 8, 2, 2, 3, 3}; /* number of arrays, by kind */
    if (count != counts[m.kind - LAYER_NORM]) return false;
    for (int i = 0; i < count; i++) {
      bool moment = m.kind == LAYER_NORM ? i >= 4 : m.kind == LAYER_NORM_BACK && (i == 3 || i == 4);
      if (!is_computed(dtypes[i]) ||
          (dtypes[i] != dtypes[0] && !(moment && dtypes[i] == MPG_FLOAT32)))
        return false;
    }
    return true;
  }
  if (count > 3) return false;
  for (int i = 0; i < count; i++) {
    bool mask = (m.kind == DROPOUT && i == 2) || (m.kind == MPG_STEP_DROP && i == 1);
    if (mask ? dtypes[i] != MPG_UINT8
             : !is_computed(dtypes[i]) || (m.kind != MPG_STEP_ROUND && dtypes[i] != dtypes[0]))
      return false;
  }
  return true;
}

/* Allocates scratch memory for partial sums, and for copies of inputs that an output overwrites. An
 * element of a broadcast input is read by many threads, some of which may run after its location
 * has been overwritten, so these inputs are read from a copy. The first pass only computes the
 * total size, and the second one copies. */
mpg_status take_scratch(const mpg_kernel_call *call, mpg_step_program *p) {
  size_t shares = 0;
  if (p->num_shares) {
    int64_t rows = p->count / p->row;
    p->block_rows = mpg_layer_norm_rows(rows);
    shares = (size_t)((rows + p->block_rows - 1) / p->block_rows * p->num_shares * p->row) *
             sizeof(float);
  }
  for (int pass = 0; pass < 2; pass++) {
    size_t total = mpg_align_up(shares, 256);
    char *scratch = NULL;
    if (pass && shares) {
      if (!(scratch = (char *)mpg_device_scratch(call->device, 0))) return MPG_DEVICE_OUT_OF_MEMORY;
      p->shares = (float *)scratch;
    }
    for (int i = 0; i < p->num_steps; i++) {
      if (p->steps[i].kind != MPG_STEP_LOAD || p->operands[p->steps[i].a].whole) continue;
      operand *in = &p->operands[p->steps[i].a];
      bool written = false;
      for (int k = 0; k < p->num_steps; k++)
        written |=
            p->steps[k].kind == MPG_STEP_STORE && p->operands[p->steps[k].b].data == in->data;
      if (!written) continue;
      size_t bytes = mpg_dtype_size((mpg_dtype)in->dtype);
      for (int d = 0; d < p->ndim; d++)
        if (in->varying >> d & 1) bytes *= (size_t)p->dims[d];
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

} // namespace

extern "C" mpg_status mpg_cuda_fused(const mpg_kernel_call *call) {
  builder b(call);
  MPG_TRY(b.build());
  MPG_TRY(take_scratch(call, &b.p));
  MPG_TRY(mpg_cuda_run_specialised(call, &b.p));
  int64_t blocks = b.p.num_shares ? mpg_specialised_blocks(&b.p) : 0;
  for (int pair = 0; pair < b.p.num_shares / 2; pair++)
    MPG_TRY(mpg_cuda_add_shares(call, b.p.shares + pair * 2 * blocks * b.p.row, blocks, b.p.row,
                                b.sums[pair].dtype, b.sums[pair].dgamma, b.sums[pair].dbeta));
  return MPG_OK;
}

extern "C" bool mpg_cuda_fuses(const mpg_op *op, const void *params, const mpg_dtype *dtypes,
                               int count) {
  meaning m;
  return count >= 2 && meaning_of(op, params, count - 1, &m) && is_taken(m, dtypes, count) &&
         mpg_cuda_specialises();
}
