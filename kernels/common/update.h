/* Which rule a parameter update follows, with which numbers: read from the op's parameters, for
 * every backend. Stateless; any thread.
 */
#ifndef KERNELS_COMMON_UPDATE_H
#define KERNELS_COMMON_UPDATE_H

#include <math.h>
#include <string.h>

#include "op/kernel.h"

typedef enum mpg_update_rule {
#define STEP(name, constants, ...) MPG_RULE_##name,
#include "kernels/common/update.def"
#undef STEP
  MPG_RULES
} mpg_update_rule;

enum { MPG_UPDATE_STATES = 3 };

/* The numbers of an update but for learning rate and weight decay, which are the weight's. */
typedef struct mpg_update_constants {
  double rescale, clip, momentum, beta1, beta2, epsilon, gamma1, gamma2, clip_weights, lamda1,
      wd_lh, eta, correct1, correct2, ahead;
} mpg_update_constants;

typedef struct mpg_update {
  int num_states, count; /* of each weight; weights */
  mpg_update_rule rule;
  mpg_update_constants c;
  bool mixed;      /* the last input of a weight is its float32 copy, which is what is updated */
  bool keeps_copy; /* which is only read */
  double lr, wd;   /* of the one weight */
  const mpg_floats *lrs, *wds; /* of several; NULL: in the last two inputs, float32 */
  const mpg_view *rescale;     /* an array of one number instead of c.rescale; where it is 0 or not
                                  finite nothing is updated. NULL: none */
} mpg_update;

static inline void mpg_update_begin(mpg_update *u, mpg_update_rule rule, int num_states,
                                    double rescale, double clip) {
  u->rule = rule;
  u->num_states = num_states;
  u->count = 1;
  u->c.rescale = rescale;
  u->c.clip = clip;
}

static inline mpg_update mpg_update_rates(mpg_update u, double lr, double wd, bool mixed) {
  u.lr = lr;
  u.wd = wd;
  u.mixed = mixed;
  return u;
}

/* Inputs of each weight. */
static inline int mpg_update_inputs(const mpg_update *u) { return 2 + u->num_states + u->mixed; }

/* The update that a call for one weight asks for. */
static inline mpg_update mpg_update_single(const mpg_kernel_call *call) {
  mpg_update u;
  memset(&u, 0, sizeof u);
  switch (call->op->id) {
    case MPG_OP_sgd_update:
    case MPG_OP_mp_sgd_update: {
      const mpg_sgd_params *p = (const mpg_sgd_params *)call->params;
      mpg_update_begin(&u, MPG_RULE_sgd, 0, p->rescale_grad, p->clip_gradient);
      return mpg_update_rates(u, p->lr, p->wd, call->op->id == MPG_OP_mp_sgd_update);
    }
    case MPG_OP_sgd_mom_update:
    case MPG_OP_mp_sgd_mom_update: {
      const mpg_sgd_mom_params *p = (const mpg_sgd_mom_params *)call->params;
      mpg_update_begin(&u, MPG_RULE_sgd_momentum, 1, p->rescale_grad, p->clip_gradient);
      u.c.momentum = p->momentum;
      return mpg_update_rates(u, p->lr, p->wd, call->op->id == MPG_OP_mp_sgd_mom_update);
    }
    case MPG_OP_nag_mom_update:
    case MPG_OP_mp_nag_mom_update: {
      const mpg_nag_mom_params *p = (const mpg_nag_mom_params *)call->params;
      mpg_update_begin(&u, MPG_RULE_nesterov, 1, p->rescale_grad, p->clip_gradient);
      u.c.momentum = p->momentum;
      u.c.ahead =
          call->op->id == MPG_OP_mp_nag_mom_update || call->outputs[0].data == call->inputs[0].data;
      return mpg_update_rates(u, p->lr, p->wd, call->op->id == MPG_OP_mp_nag_mom_update);
    }
    case MPG_OP_adam_update: {
      const mpg_adam_params *p = (const mpg_adam_params *)call->params;
      mpg_update_begin(&u, MPG_RULE_adam, 2, p->rescale_grad, p->clip_gradient);
      u.c.beta1 = p->beta1;
      u.c.beta2 = p->beta2;
      u.c.epsilon = p->epsilon;
      return mpg_update_rates(u, p->lr, p->wd, false);
    }
    case MPG_OP__sparse_adagrad_update: {
      const mpg_adagrad_params *p = (const mpg_adagrad_params *)call->params;
      mpg_update_begin(&u, MPG_RULE_adagrad, 1, p->rescale_grad, p->clip_gradient);
      u.c.epsilon = p->epsilon;
      return mpg_update_rates(u, p->lr, p->wd, false);
    }
    case MPG_OP_rmsprop_update: {
      const mpg_rmsprop_params *p = (const mpg_rmsprop_params *)call->params;
      mpg_update_begin(&u, MPG_RULE_rmsprop, 1, p->rescale_grad, p->clip_gradient);
      u.c.gamma1 = p->gamma1;
      u.c.epsilon = p->epsilon;
      u.c.clip_weights = p->clip_weights;
      return mpg_update_rates(u, p->lr, p->wd, false);
    }
    case MPG_OP_rmspropalex_update: {
      const mpg_rmspropalex_params *p = (const mpg_rmspropalex_params *)call->params;
      mpg_update_begin(&u, MPG_RULE_rmsprop_centred, 3, p->rescale_grad, p->clip_gradient);
      u.c.gamma1 = p->gamma1;
      u.c.gamma2 = p->gamma2;
      u.c.epsilon = p->epsilon;
      u.c.clip_weights = p->clip_weights;
      return mpg_update_rates(u, p->lr, p->wd, false);
    }
    case MPG_OP_ftrl_update: {
      const mpg_ftrl_params *p = (const mpg_ftrl_params *)call->params;
      mpg_update_begin(&u, MPG_RULE_ftrl, 2, p->rescale_grad, p->clip_gradient);
      u.c.lamda1 = p->lamda1;
      u.c.beta1 = p->beta;
      return mpg_update_rates(u, p->lr, p->wd, false);
    }
    case MPG_OP_ftml_update: {
      const mpg_ftml_params *p = (const mpg_ftml_params *)call->params;
      mpg_update_begin(&u, MPG_RULE_ftml, 3, p->rescale_grad, p->clip_grad);
      u.c.beta1 = p->beta1;
      u.c.beta2 = p->beta2;
      u.c.epsilon = p->epsilon;
      u.c.correct1 = 1 - pow(p->beta1, (double)p->t);
      u.c.correct2 = 1 - pow(p->beta2, (double)p->t);
      return mpg_update_rates(u, p->lr, p->wd, false);
    }
    case MPG_OP_signsgd_update: {
      const mpg_signsgd_params *p = (const mpg_signsgd_params *)call->params;
      mpg_update_begin(&u, MPG_RULE_sign_sgd, 0, p->rescale_grad, p->clip_gradient);
      return mpg_update_rates(u, p->lr, p->wd, false);
    }
    case MPG_OP_signum_update: {
      const mpg_signum_params *p = (const mpg_signum_params *)call->params;
      mpg_update_begin(&u, MPG_RULE_signum, 1, p->rescale_grad, p->clip_gradient);
      u.c.momentum = p->momentum;
      u.c.wd_lh = p->wd_lh;
      return mpg_update_rates(u, p->lr, p->wd, false);
    }
    case MPG_OP__adamw_update:
    case MPG_OP__mp_adamw_update: {
      const mpg_adamw_params *p = (const mpg_adamw_params *)call->params;
      bool mixed = call->op->id == MPG_OP__mp_adamw_update;
      mpg_update_begin(&u, MPG_RULE_adamw, 2, 1, p->clip_gradient);
      u.rescale = &call->inputs[mixed ? 5 : 4];
      u.c.beta1 = p->beta1;
      u.c.beta2 = p->beta2;
      u.c.epsilon = p->epsilon;
      u.c.eta = p->eta;
      return mpg_update_rates(u, p->lr, p->wd, mixed);
    }
    default: { /* lamb_update_phase1 and mp_lamb_update_phase1, whose result is a direction: the
                  copy is only read */
      const mpg_lamb_phase1_params *p = (const mpg_lamb_phase1_params *)call->params;
      mpg_update_begin(&u, MPG_RULE_lamb_direction, 2, p->rescale_grad, p->clip_gradient);
      u.c.beta1 = p->beta1;
      u.c.beta2 = p->beta2;
      u.c.epsilon = p->epsilon;
      u.c.correct1 = p->bias_correction ? 1 - pow(p->beta1, (double)p->t) : 1;
      u.c.correct2 = p->bias_correction ? 1 - pow(p->beta2, (double)p->t) : 1;
      u.keeps_copy = true;
      return mpg_update_rates(u, 0, p->wd, call->op->id == MPG_OP_mp_lamb_update_phase1);
    }
  }
}

/* The update that a call for several weights asks for. */
static inline mpg_update mpg_update_several(const mpg_kernel_call *call) {
  mpg_update u;
  memset(&u, 0, sizeof u);
  switch (call->op->id) {
#define GROUP(structure, name, states, more)                                            \
  {                                                                                     \
    const mpg_##structure##_params *p = (const mpg_##structure##_params *)call->params; \
    bool mixed_ = u.mixed;                                                              \
    mpg_update_begin(&u, MPG_RULE_##name, states, p->rescale_grad, p->clip_gradient);   \
    u.mixed = mixed_;                                                                   \
    u.count = (int)p->num_weights;                                                      \
    more;                                                                               \
    return u;                                                                           \
  }
#define RATES (u.lrs = &p->lrs, u.wds = &p->wds)
    case MPG_OP_multi_mp_sgd_update: u.mixed = true; __attribute__((fallthrough));
    case MPG_OP_multi_sgd_update: GROUP(multi_sgd, sgd, 0, RATES)
    case MPG_OP_multi_mp_sgd_mom_update: u.mixed = true; __attribute__((fallthrough));
    case MPG_OP_multi_sgd_mom_update:
      GROUP(multi_sgd_mom, sgd_momentum, 1, (RATES, u.c.momentum = p->momentum))
    case MPG_OP__multi_nag_mom_update:
      GROUP(multi_sgd_mom, nesterov, 1, (RATES, u.c.momentum = p->momentum, u.c.ahead = 1))
    case MPG_OP_preloaded_multi_mp_sgd_update: u.mixed = true; __attribute__((fallthrough));
    case MPG_OP_preloaded_multi_sgd_update: GROUP(preloaded_sgd, sgd, 0, (void)0)
    case MPG_OP_preloaded_multi_mp_sgd_mom_update: u.mixed = true; __attribute__((fallthrough));
    case MPG_OP_preloaded_multi_sgd_mom_update:
      GROUP(preloaded_sgd_mom, sgd_momentum, 1, u.c.momentum = p->momentum)
    case MPG_OP__multi_adam_update:
      GROUP(multi_adam, adam, 2,
            (RATES, u.c.beta1 = p->beta1, u.c.beta2 = p->beta2, u.c.epsilon = p->epsilon))
    case MPG_OP__multi_rmsprop_update:
      GROUP(multi_rmsprop, rmsprop, 1,
            (RATES, u.c.gamma1 = p->gamma1, u.c.epsilon = p->epsilon,
             u.c.clip_weights = p->clip_weights))
    default: GROUP(multi_adagrad, adagrad, 1, (RATES, u.c.epsilon = p->epsilon))
  }
#undef GROUP
#undef RATES
}

#endif
