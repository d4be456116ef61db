/* Collectives as single ops on devices with host-readable memory. The device that runs the op moves
 * all data itself. Sums are computed by add_n, in rank order. */
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "op/array/collective.h"

static size_t bytes_of(const mpg_view *view) {
  return (size_t)mpg_shape_size(&view->desc.shape) * mpg_dtype_size(view->desc.dtype);
}

/* Sums the inputs into `output`, skipping the first `skipped` bytes of each input. The size of
 * `output` determines the number of elements. */
static mpg_status sum(const mpg_kernel_call *call, size_t skipped, const mpg_view *output) {
  mpg_view parts[MPG_MAX_SPANNED];
  mpg_kernel_call adding = *call;
  for (int i = 0; i < call->num_inputs; i++)
    parts[i] = (mpg_view){(char *)call->inputs[i].data + skipped, output->desc};
  adding.inputs = parts;
  adding.outputs = output;
  adding.num_outputs = 1;
  return mpg_cpu_add_n(&adding);
}

mpg_status mpg_cpu_collective(const mpg_kernel_call *call) {
  mpg_collective_kind kind =
      (mpg_collective_kind)((const mpg_collective_params *)call->params)->kind;
  size_t skipped = 0;
  for (int i = 0; i < call->num_outputs; i++) {
    const mpg_view *output = &call->outputs[i];
    switch (kind) {
      case MPG_SUM_TO_ALL:
        if (i)
          memcpy(output->data, call->outputs[0].data, bytes_of(output));
        else
          MPG_TRY(sum(call, 0, output));
        break;
      case MPG_SUM_TO_ONE: MPG_TRY(sum(call, 0, output)); break;
      case MPG_ONE_TO_ALL: memcpy(output->data, call->inputs[0].data, bytes_of(output)); break;
      case MPG_SUM_TO_PARTS:
        MPG_TRY(sum(call, skipped, output));
        skipped += bytes_of(output);
        break;
      case MPG_JOIN_TO_ALL: {
        char *to = output->data;
        for (int k = 0; k < call->num_inputs; to += bytes_of(&call->inputs[k++]))
          memcpy(to, call->inputs[k].data, bytes_of(&call->inputs[k]));
        break;
      }
      case MPG_EXCHANGE: memcpy(output->data, call->inputs[i].data, bytes_of(output)); break;
    }
  }
  return MPG_OK;
}
