/* Rewrite rule that computes 3x3 convolutions by Winograd's algorithm if that is faster in the
 * forward and backward passes. */
#include <string.h>

#include "graph/rewrite/rewrite.h"
#include "op/layers/convolution.h"

bool mpg_rewrite_winograd_pays(const mpg_rewrite *r, mpg_operand convolution, bool packed) {
  const mpg_convolution_params *p = mpg_rewrite_params(r, convolution);
  mpg_convolution c;
  mpg_convolution_set(
      &c, MPG_CHANNELS_LAST_DATA, &mpg_rewrite_desc(r, mpg_rewrite_input(r, convolution, 0))->shape,
      &mpg_rewrite_desc(r, mpg_rewrite_input(r, convolution, 1))->shape,
      &mpg_rewrite_desc(r, convolution)->shape, &p->stride, &p->dilate, &p->pad, p->num_group);
  return mpg_winograd_pays(&c, packed);
}

static bool use_winograd(mpg_rewrite *r, uint32_t n) {
  const mpg_node *node = &r->graph->nodes[n];
  mpg_operand shown = mpg_rewrite_shown(r);
  if (node->op->id != MPG_OP__convolution_channels_last ||
      mpg_rewrite_desc(r, shown)->dtype != MPG_FLOAT32)
    return false;
  if (!mpg_rewrite_winograd_pays(r, shown, false)) return false;
  mpg_winograd_params params;
  mpg_winograd_params_from(&params, node->params);
  params.no_bias = node->num_inputs == 2;
  params.trains = true;
  mpg_value inputs[4] = {mpg_rewrite_take(r, mpg_rewrite_input(r, shown, 0)), MPG_NO_VALUE,
                         mpg_rewrite_take(r, mpg_rewrite_input(r, shown, 1))},
            result;
  if (!params.no_bias) inputs[3] = mpg_rewrite_take(r, mpg_rewrite_input(r, shown, 2));
  mpg_pack_winograd_params pack = {0};
  mpg_rewrite_emit(r, MPG_OP__pack_winograd, &pack, &inputs[2], 1, &inputs[1]);
  mpg_rewrite_emit(r, MPG_OP__winograd_convolution, &params, inputs, params.no_bias ? 3 : 4,
                   &result);
  mpg_rewrite_replace(r, 0, result);
  return true;
}

const mpg_rewrite_rule mpg_rule_winograd = {.name = "convolutions by Winograd's algorithm",
                                            .apply = use_winograd,
                                            .needs = 1 + MPG_OP__winograd_convolution};
