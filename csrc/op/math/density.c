/* Probability densities of samples. The parameters of a distribution have the shape of the leading
 * axes of the samples. Formulas and gradients match MXNet 1.9.1: the samples of a discrete
 * distribution get no gradient. */
#include <math.h>
#include <string.h>

#include "op/formula/arithmetic.h"
#include "op/infer.h"

typedef struct density {
  mpg_gradient *g;
  mpg_value x, a, b; /* samples x and parameters a, b, which broadcast to x; float32 or wider */
  bool is_log;
} density;

static mpg_value apply(const density *d, mpg_op_id op, mpg_value a) {
  return mpg_emit1(d->g, op, NULL, a);
}
static mpg_value log_of(const density *d, mpg_value a) { return apply(d, MPG_OP_log, a); }
static mpg_value gammaln(const density *d, mpg_value a) { return apply(d, MPG_OP_gammaln, a); }
static mpg_value exp_of(const density *d, mpg_value a) { return apply(d, MPG_OP_exp, a); }

/* Widens 16-bit floats to float32 and reshapes a parameter so that it broadcasts to the samples.
 * The parameter's axes are the leading axes of the samples, but if `vector`, its last axis is the
 * last axis of the samples. */
static mpg_value spread(mpg_gradient *g, mpg_value parameter, const mpg_shape *sample,
                        bool vector) {
  if (g->status != MPG_OK) return MPG_NO_VALUE;
  mpg_shape shape = mpg_value_desc(g, parameter)->shape, wide = *sample;
  int leading = shape.ndim - vector;
  bool fits = shape.ndim <= sample->ndim &&
              (!vector || (shape.ndim && shape.dims[leading] == sample->dims[sample->ndim - 1]));
  for (int i = 0; i < sample->ndim; i++) {
    if (fits && i < leading) fits = shape.dims[i] == sample->dims[i];
    if (i >= leading && !(vector && i == sample->ndim - 1)) wide.dims[i] = 1;
  }
  if (fits) return mpg_emit_reshape(g, mpg_widen(g, parameter), &wide);
  char text[MPG_SHAPE_TEXT_SIZE], other[MPG_SHAPE_TEXT_SIZE];
  mpg_gradient_fail(g, "parameters of shape %s do not match the leading axes of samples %s%s",
                    mpg_shape_text(&shape, text, sizeof text),
                    mpg_shape_text(sample, other, sizeof other),
                    vector ? " and their last axis" : "");
  return MPG_NO_VALUE;
}

static density begin(mpg_gradient *g, const mpg_value *inputs, bool discrete, bool vector) {
  const mpg_density_params *params = g->params;
  density d = {.g = g, .x = inputs[0], .is_log = params->is_log};
  mpg_shape sample = mpg_value_desc(g, inputs[0])->shape;
  if (discrete) d.x = mpg_emit1(g, MPG_OP_BlockGrad, NULL, d.x);
  d.x = mpg_widen(g, d.x);
  d.a = spread(g, inputs[1], &sample, vector);
  d.b = g->num_inputs > 2 ? spread(g, inputs[2], &sample, vector) : MPG_NO_VALUE;
  return d;
}

static mpg_value finish(mpg_gradient *g, const mpg_value *inputs, mpg_value density) {
  return mpg_emit_cast(g, density, mpg_value_desc(g, inputs[0])->dtype);
}

/* Returns the op's result for the log density `value`, which is exp(value) unless is_log. */
static mpg_value of_log(const density *d, mpg_value value) {
  return d->is_log ? value : exp_of(d, value);
}

void mpg_compose_density_uniform(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  density d = begin(g, inputs, true, false);
  mpg_value width = mpg_subtract(g, d.b, d.a);
  mpg_value each = d.is_log ? apply(&d, MPG_OP_negative, log_of(&d, width)) : mpg_over(g, 1, width);
  outputs[0] = finish(g, inputs, mpg_add(g, mpg_emit_full_like(g, d.x, 0), each));
}

void mpg_compose_density_normal(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  density d = begin(g, inputs, false, false);
  mpg_value distance = mpg_divide(g, mpg_subtract(g, d.x, d.a), d.b);
  mpg_value exponent = mpg_times(g, apply(&d, MPG_OP_square, distance), -0.5);
  mpg_value normalizer = mpg_times(g, d.b, sqrt(2 * 3.14159265358979323846));
  outputs[0] = finish(g, inputs,
                      d.is_log ? mpg_subtract(g, exponent, log_of(&d, normalizer))
                               : mpg_divide(g, exp_of(&d, exponent), normalizer));
}

void mpg_compose_density_gamma(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  density d = begin(g, inputs, false, false);
  mpg_value constant = mpg_subtract(g, mpg_multiply(g, d.a, log_of(&d, d.b)), gammaln(&d, d.a));
  mpg_value power = mpg_multiply(g, mpg_plus(g, d.a, -1), log_of(&d, d.x));
  mpg_value value = mpg_subtract(g, mpg_add(g, power, constant), mpg_multiply(g, d.b, d.x));
  outputs[0] = finish(g, inputs, of_log(&d, value));
}

void mpg_compose_density_exponential(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  density d = begin(g, inputs, false, false);
  mpg_value product = mpg_multiply(g, d.a, d.x);
  outputs[0] =
      finish(g, inputs,
             d.is_log ? mpg_subtract(g, log_of(&d, d.a), product)
                      : mpg_multiply(g, d.a, exp_of(&d, apply(&d, MPG_OP_negative, product))));
}

void mpg_compose_density_poisson(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  density d = begin(g, inputs, true, false);
  mpg_value value =
      mpg_subtract(g, mpg_multiply(g, d.x, log_of(&d, d.a)), gammaln(&d, mpg_plus(g, d.x, 1)));
  outputs[0] = finish(g, inputs, of_log(&d, mpg_subtract(g, value, d.a)));
}

/* Emits the probability of x successes before d->a failures, each of which has probability
 * d->b. */
static mpg_value negative_binomial(const density *d) {
  mpg_gradient *g = d->g;
  mpg_value choices = mpg_subtract(g, gammaln(d, mpg_add(g, d->x, d->a)),
                                   mpg_add(g, gammaln(d, mpg_plus(g, d->x, 1)), gammaln(d, d->a)));
  mpg_value failures = mpg_multiply(g, d->a, log_of(d, d->b));
  mpg_value successes = mpg_multiply(g, d->x, log_of(d, mpg_minus_from(g, 1, d->b)));
  return of_log(d, mpg_add(g, mpg_add(g, choices, failures), successes));
}

void mpg_compose_density_negative_binomial(mpg_gradient *g, const mpg_value *inputs,
                                           mpg_value *outputs) {
  density d = begin(g, inputs, true, false);
  outputs[0] = finish(g, inputs, negative_binomial(&d));
}

/* Converts the mean and dispersion to the number of failures and the probability of a failure. */
void mpg_compose_density_generalized_negative_binomial(mpg_gradient *g, const mpg_value *inputs,
                                                       mpg_value *outputs) {
  density d = begin(g, inputs, true, false);
  mpg_value probability = mpg_over(g, 1, mpg_plus(g, mpg_multiply(g, d.a, d.b), 1));
  d.a = mpg_over(g, 1, d.b);
  d.b = probability;
  outputs[0] = finish(g, inputs, negative_binomial(&d));
}

void mpg_compose_density_dirichlet(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  density d = begin(g, inputs, false, true);
  if (g->status != MPG_OK) return;
  mpg_shape shape = mpg_value_desc(g, inputs[0])->shape;
  mpg_reduce_params sum;
  memset(&sum, 0, sizeof sum);
  sum.axis = (mpg_tuple){.count = 1, .values = {shape.ndim - 1}};
  shape.ndim--;
  mpg_lift(g->op, &shape);
  mpg_value powers = mpg_multiply(g, mpg_plus(g, d.a, -1), log_of(&d, d.x));
  mpg_value constant = mpg_subtract(g, gammaln(&d, mpg_emit1(g, MPG_OP_sum, &sum, d.a)),
                                    mpg_emit1(g, MPG_OP_sum, &sum, gammaln(&d, d.a)));
  mpg_value value = mpg_add(g, mpg_emit1(g, MPG_OP_sum, &sum, powers), constant);
  outputs[0] = finish(g, inputs, mpg_emit_reshape(g, of_log(&d, value), &shape));
}
