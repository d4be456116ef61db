/* Products computed panel by panel (op/math/product.h). One thread computes a panel, and threads
 * take different ones. The weight is packed once, so that panels cost no more than the whole
 * product. Convolutions implement their own (winograd.c). The caller holds the device's
 * MPG_SCRATCH_LIBRARY until the last panel is done.
 */
#ifndef KERNELS_CPU_PRODUCTS_PANELS_H
#define KERNELS_CPU_PRODUCTS_PANELS_H

#include "kernels/cpu/cpu.h"
#include "op/math/product.h"

enum { MPG_PANEL_THREADS = 64 };

/* Work that a producer does on each element of its result: addition, relu or its gradient, in this
 * order. Arrays of the result's size, or NULL. */
typedef struct mpg_panel_tail {
  const float *added, *gate; /* gate: relu's result, as for _backward_relu */
  bool relu;
} mpg_panel_tail;

typedef struct mpg_panels {
  mpg_product product;
  int64_t count;
  const float *a, *b, *bias;               /* bias may be NULL */
  const void *prepared[MPG_PANEL_THREADS]; /* oneDNN's, per thread; NULL if not used */
  char *packed, *scratch;
  size_t scratch_bytes; /* per thread */
  void *own;            /* a convolution's state, in the device's MPG_SCRATCH_LIBRARY */
} mpg_panels;

/* `call` is the op's own call, except for its outputs. `threads` is the number of threads that
 * compute panels, at most MPG_PANEL_THREADS. `tail` passed mpg_panel_takes, or is NULL. */
mpg_status mpg_cpu_panels_begin(const mpg_kernel_call *call, const mpg_product *product,
                                const mpg_panel_tail *tail, int threads, mpg_panels *panels)
    MPG_PER_ISA(mpg_cpu_panels_begin);
/* Computes one panel into `out`, on the thread with index `thread`. */
mpg_status mpg_cpu_panel(const mpg_kernel_call *call, const mpg_panels *panels, int thread,
                         int64_t panel, float *out) MPG_PER_ISA(mpg_cpu_panel);
/* Runs the op by itself: all panels. */
mpg_status mpg_cpu_panels(const mpg_kernel_call *call, const mpg_product *product)
    MPG_PER_ISA(mpg_cpu_panels);

/* Implementation for convolutions. */
mpg_status mpg_cpu_winograd_begin(const mpg_kernel_call *call, const mpg_panel_tail *tail,
                                  int threads, mpg_panels *panels)
    MPG_PER_ISA(mpg_cpu_winograd_begin);
void mpg_cpu_winograd_panel(const mpg_panels *panels, int thread, int64_t panel, float *out)
    MPG_PER_ISA(mpg_cpu_winograd_panel);

/* True if the op computes panels with a tail, with the same bits as separate ops. */
static inline bool mpg_panel_takes(const mpg_op *op, const void *params) {
  return op->id == MPG_OP__winograd_convolution && !((const mpg_winograd_params *)params)->add &&
         !((const mpg_winograd_params *)params)->relu;
}

static inline int mpg_panel_threads(const mpg_kernel_call *call, const mpg_product *product) {
  int64_t most = product->m / mpg_product_panel(product, call->num_threads) / 2;
  if (most > MPG_PANEL_THREADS) most = MPG_PANEL_THREADS;
  return call->num_threads < most ? call->num_threads : (int)most;
}

#endif
