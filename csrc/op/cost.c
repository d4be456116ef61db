/* Cost rules that many ops share, and conversion of a cost to seconds. See op.h. */
#include "op/infer.h"

static double size_of(const mpg_desc *desc) { return (double)mpg_shape_size(&desc->shape); }
static double bytes_of(const mpg_desc *desc) {
  return size_of(desc) * (double)mpg_dtype_size(desc->dtype);
}

static double total(const mpg_desc *descs, int count, double (*of)(const mpg_desc *)) {
  double sum = 0;
  for (int i = 0; i < count; i++) sum += of(&descs[i]);
  return sum;
}

static double larger(double a, double b) { return a > b ? a : b; }

double mpg_cost_bytes(const mpg_infer *call) {
  if (call->op->flags & MPG_OP_VIEW) return 0;
  double written = total(call->outputs, call->num_outputs, bytes_of);
  return call->op->flags & MPG_OP_SHAPE_ONLY
             ? written
             : written + total(call->inputs, call->num_inputs, bytes_of);
}

/* Returns the number of elements that a call processes: the total size of the inputs or of the
 * outputs, whichever is larger. */
static double worked_on(const mpg_infer *call) {
  if (call->op->flags & MPG_OP_VIEW) return 0;
  double out = total(call->outputs, call->num_outputs, size_of);
  return call->op->flags & MPG_OP_SHAPE_ONLY
             ? out
             : larger(out, total(call->inputs, call->num_inputs, size_of));
}

mpg_cost mpg_cost_elements(const mpg_infer *call) {
  return (mpg_cost){mpg_cost_bytes(call), worked_on(call)};
}
mpg_cost mpg_cost_passes(const mpg_infer *call) {
  return (mpg_cost){mpg_cost_bytes(call), 5 * worked_on(call)};
}

mpg_cost mpg_cost_math(const mpg_infer *call) {
  return (mpg_cost){mpg_cost_bytes(call),
                    MPG_COST_FUNCTION * total(call->outputs, call->num_outputs, size_of)};
}

mpg_cost mpg_cost_draws(const mpg_infer *call) { return mpg_cost_math(call); }

/* Cost of moving elements. Charges no more bytes for reading than for writing, because only a part
 * of a large input (a table, the source of a slice) is read. */
mpg_cost mpg_cost_moves(const mpg_infer *call) {
  double in = total(call->inputs, call->num_inputs, bytes_of),
         out = total(call->outputs, call->num_outputs, bytes_of);
  return (mpg_cost){out + (in < out ? in : out), 0};
}

/* --- Seconds ---------------------------------------------------------------------------------- */

typedef struct rates {
  double start, bytes, flops, copied;
} rates;

/* Rates of a CPU core with its share of the memory bandwidth, and of a typical training GPU:
 * seconds per launch, then bytes, floating-point operations and copied bytes per second. */
static const rates cpu_rates = {1e-6, 1e10, 1e11, 5e9}, gpu_rates = {5e-6, 2e12, 4e13, 2e10};

static const rates *rates_of(int32_t device_type) {
  return device_type == MPG_GPU ? &gpu_rates : &cpu_rates;
}

double mpg_cost_seconds(mpg_cost cost, int32_t device_type, mpg_dtype dtype) {
  const rates *r = rates_of(device_type);
  bool half = dtype == MPG_FLOAT16 || dtype == MPG_BFLOAT16;
  double flops = dtype == MPG_FLOAT64             ? r->flops / 2
                 : half && device_type == MPG_GPU ? r->flops * 8
                                                  : r->flops;
  if (cost.bytes == 0 && cost.flops == 0) return 0; /* a view costs nothing */
  return r->start + larger(cost.bytes / r->bytes, cost.flops / flops);
}

double mpg_copy_seconds(double bytes, int32_t device_type) {
  const rates *r = rates_of(device_type);
  return r->start + bytes / r->copied;
}
