/* Fused groups (op/fused.h) in one pass: a small program, made of the group when it is called, that
 * every thread runs on MPG_GROUP_ELEMENTS neighbouring elements as a kernel of its own
 * (specialise.h).
 *
 * Values are floats in a thread's own registers, rounded to their dtype after each member, so that
 * an element's bits are those of the members' own kernels. What is read is loaded where it is first
 * needed, what is wanted outside stored where it is made. A value that is broadcast along some dims
 * is computed by everyone who needs it and stored by one. `fuses` says which ops may be in a group:
 * those of one and two arrays whose formulas are in kernels/common, casts, copies, broadcasts,
 * dropout, and sums, means and extrema of rows, of float32, float16 and bfloat16, where NVRTC
 * compiles groups. Others run by themselves. A mask is 1 or 0 in registers. In a group that
 * reduces, threads share rows as the kernel of the reduction does (math/reduce.cu), and have the
 * result for each of their elements.
 */
#include "kernels/cuda/fusion/generated.h"

#include "kernels/cuda/rows.h"
extern "C" {
#include "kernels/common/formula.h"
#include "kernels/common/reduce.h"
#include "kernels/cuda/fusion/specialise.h"
}

namespace {

typedef mpg_step step;
typedef mpg_step_operand operand;

/* --- Members ---------------------------------------------------------------------------------- */
const uint8_t DROPOUT = 255; /* a kind of member: a step DRAW, then one DROP */
struct meaning {             /* of an op, with its parameters */
  uint8_t kind, row, fixed, mean;
  int num_constants;
  double constants[MPG_UNARY_CONSTANTS];
};

bool meaning_of(const mpg_op *op, const void *params, int num_inputs, meaning *m) {
  const mpg_formula formula = mpg_formula_of(op, params);
  *m = meaning{};
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
/* A constant as an element of the dtype has it. */
float rounded(double value, mpg_dtype dtype) {
  switch (dtype) {
    case MPG_FLOAT16: return mpg_to<float>(mpg_to<mpg_half>(value));
    case MPG_BFLOAT16: return mpg_to<float>(mpg_to<mpg_bfloat16>(value));
    default: return (float)value;
  }
}

/* Every value has at most one register and one operand, every member at most its constants: the
 * program's arrays are long enough for all groups. */
struct builder {
  mpg_step_program p;
  const mpg_kernel_call *call;
  const mpg_fused *fused;
  uint8_t register_of[MPG_FUSED_MAX_VALUES], free_registers[MPG_FUSED_MAX_VALUES];
  uint8_t last_read[MPG_FUSED_MAX_VALUES]; /* the member; 255: none */
  bool there[MPG_FUSED_MAX_VALUES];
  int num_free;
  uint32_t row_dims; /* 0: there are no rows */

  explicit builder(const mpg_kernel_call *call_)
      : call(call_), fused((const mpg_fused *)call_->params), num_free(0), row_dims(0) {
    memset(last_read, 255, sizeof last_read);
    memset(there, 0, sizeof there);
    p.num_steps = p.num_operands = p.num_constants = p.num_registers = 0;
    p.num_draws = (int)fused->num_draws;
    p.ndim = fused->ndim;
    p.count = 1;
    for (int d = 0; d < p.ndim; d++) p.count *= p.dims[d] = fused->dims[d];
    p.row = 0, p.each = MPG_GROUP_ELEMENTS, p.packs = 1, p.lanes = MPG_CUDA_THREADS;
    for (uint32_t k = 0; k < fused->num_members && !row_dims; k++)
      if (fused->members[k].op->flags & MPG_OP_REDUCTION) take_rows(fused->members[k]);
  }
  /* The group's rows, as the kernel of the reduction holds them (math/reduce.cu). */
  void take_rows(const mpg_fused_member &member) {
    const mpg_fused_value &in = fused->values[fused->operands[member.operands]],
                          &out = fused->values[fused->operands[member.operands + 1]];
    row_dims = in.varying & ~out.varying;
    p.row = 1;
    for (int d = 0; d < p.ndim; d++)
      if (row_dims >> d & 1) p.row *= (int)p.dims[d];
    auto take = [&](auto row) {
      typedef decltype(row) R;
      p.each = R::EACH, p.packs = R::SIZE / R::EACH, p.lanes = R::THREADS;
      return MPG_OK;
    };
    switch (in.dtype) {
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
    uint32_t inputs = (uint32_t)call->num_inputs;
    o->data = value.operand == MPG_FUSED_LOCAL ? NULL
              : value.operand < inputs         ? call->inputs[value.operand].data
                                               : call->outputs[value.operand - inputs].data;
    o->varying = value.varying;
    o->dtype = (uint8_t)value.dtype;
    o->whole = value.varying == (1u << fused->ndim) - 1;
    o->by_row = row_dims && !(value.varying & row_dims);
    size_t bytes = (size_t)p.each * mpg_dtype_size(value.dtype);
    o->packed =
        o->whole && p.row % p.each == 0 && (uintptr_t)o->data % (bytes < 16 ? bytes : 16) == 0;
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
  /* A Dropout's mask; returns its register. */
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
  void compute(const mpg_fused_member &member, uint32_t k, const meaning &m) {
    const uint32_t *inputs = fused->operands + member.operands, out = inputs[member.num_inputs],
                   mask = m.kind == DROPOUT ? inputs[member.num_inputs + 1] : 0;
    mpg_dtype dtype = fused->values[out].dtype;
    uint8_t a = read(inputs[0]), b = member.num_inputs == 2 ? read(inputs[1]) : a;
    if (m.kind == DROPOUT) b = draw(member, mask, m);
    for (uint32_t i = 0; i < member.num_inputs; i++) /* the result may take its place */
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
        return mpg_fail(MPG_ERROR, "internal: the fused group %s has members that GPUs do not fuse",
                        fused->name);
      compute(member, k, m);
    }
    return MPG_OK;
  }
};

/* Whether a member's arrays, inputs first, have dtypes that it is computed of. */
bool is_taken(const meaning &m, const mpg_dtype *dtypes, int count) {
  for (int i = 0; i < count; i++) {
    bool mask = (m.kind == DROPOUT && i == 2) || (m.kind == MPG_STEP_DROP && i == 1);
    if (mask ? dtypes[i] != MPG_UINT8
             : !is_computed(dtypes[i]) || (m.kind != MPG_STEP_ROUND && dtypes[i] != dtypes[0]))
      return false;
  }
  return true;
}

/* A value that is written while others still read it, because it does not vary along some dims, is
 * read from a copy. */
mpg_status separate(const mpg_kernel_call *call, mpg_step_program *p) {
  for (int pass = 0; pass < 2; pass++) {
    size_t total = 0;
    char *scratch = NULL;
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
  MPG_TRY(separate(call, &b.p));
  return mpg_cuda_run_specialised(call, &b.p);
}

extern "C" bool mpg_cuda_fuses(const mpg_op *op, const void *params, const mpg_dtype *dtypes,
                               int count) {
  meaning m;
  return count >= 2 && count <= 3 && meaning_of(op, params, count - 1, &m) &&
         is_taken(m, dtypes, count) && mpg_cuda_specialises();
}
