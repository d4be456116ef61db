/* Rule and constants of a weight update, read from the op's parameters. Shared by all backends.
 * These functions are stateless and may be called from any thread.
 */
#ifndef KERNELS_COMMON_UPDATE_H
#define KERNELS_COMMON_UPDATE_H

#include <math.h>
#include <string.h>

#include "op/kernel.h"

typedef enum mpg_update_rule {
#define STEP(name, constants, ...) MPG_RULE_##name,
#include "kernels/common/update.def"
  MPG_RULES
} mpg_update_rule;

enum { MPG_UPDATE_STATES = 3 };

/* Constants of an update that are the same for all weights. The learning rate and weight decay may
 * differ between weights, so mpg_update holds them. */
typedef struct mpg_update_constants {
  double rescale, clip, momentum, beta1, beta2, epsilon, gamma1, gamma2, clip_weights, lamda1,
      wd_lh, eta, correct1, correct2, ahead, gradient_factor, gradient_divisor, mean_factor,
      mean_divisor;
} mpg_update_constants;

typedef struct mpg_update {
  int num_states, count; /* states per weight; number of weights */
  mpg_update_rule rule;
  mpg_update_constants c;
  bool mixed;      /* each weight's last input is its float32 master copy, which is updated */
  bool keeps_copy; /* the float32 master copy is read but not updated */
  double lr, wd;   /* used if the op updates a single weight */
  /* Learning rates and weight decays of several weights. NULL if the last two inputs hold them as
   * float32. */
  const mpg_floats *lrs, *wds;
  /* One-element array that replaces c.rescale, or NULL. If the element is 0 or not finite, the
   * update is skipped. */
  const mpg_view *rescale;
} mpg_update;

/* Returns the number of inputs per weight: weight, gradient, states and, if mixed, the master
 * copy. */
static inline int mpg_update_inputs(const mpg_update *u) { return 2 + u->num_states + u->mixed; }

/* Returns the update that a call requests. */
static inline mpg_update mpg_update_of(const mpg_kernel_call *call) {
  mpg_update u;
  memset(&u, 0, sizeof u);
  u.count = 1;
  switch (call->op->id) {
#define UPDATE(op, params_struct, rule_, states, mixed_, ...)                                   \
  case MPG_OP_##op: {                                                                           \
    const mpg_##params_struct##_params *p = (const mpg_##params_struct##_params *)call->params; \
    u.rule = MPG_RULE_##rule_;                                                                  \
    u.num_states = states;                                                                      \
    u.mixed = mixed_;                                                                           \
    __VA_ARGS__;                                                                                \
    return u;                                                                                   \
  }
#define NUMBER(name) (u.c.name = p->name)
#define GRADIENT (u.c.rescale = p->rescale_grad, u.c.clip = p->clip_gradient)
#define RATES (u.lr = p->lr, u.wd = p->wd)
#define SEVERAL (u.count = (int)p->num_weights)
#define SEVERAL_RATES (SEVERAL, u.lrs = &p->lrs, u.wds = &p->wds)
#define IN_PLACE (call->outputs[0].data == call->inputs[0].data)
/* The input that follows all inputs of the first weight. */
#define BEHIND (&call->inputs[mpg_update_inputs(&u)])
#include "kernels/common/update.def"
#undef NUMBER
#undef GRADIENT
#undef RATES
#undef SEVERAL
#undef SEVERAL_RATES
#undef IN_PLACE
#undef BEHIND
    default: return u;
  }
}

#endif
