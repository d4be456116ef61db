/* Products made panel by panel (op/math/product.h): each panel by one thread, threads taking
 * different ones, and with the weight packed once, so that panels cost no more than the product as
 * a whole. Convolutions make theirs themselves (winograd.c). Whoever calls holds the device's
 * MPG_SCRATCH_LIBRARY until the last panel is made.
 */
#ifndef KERNELS_CPU_PRODUCTS_PANELS_H
#define KERNELS_CPU_PRODUCTS_PANELS_H

#include "kernels/cpu/cpu.h"
#include "op/math/product.h"

enum { MPG_PANEL_THREADS = 64 };

/* Work that a producer does itself on each element of its result: addition, relu or its gradient,
 * in this order. Arrays of the result's size, or NULL. */
typedef struct mpg_panel_tail {
  const float *added, *gate; /* gate: what _backward_relu takes as relu's result */
  bool relu;
} mpg_panel_tail;

typedef struct mpg_panels {
  mpg_product product;
  int64_t count;
  const float *a, *b, *bias;               /* bias NULL: none */
  const void *prepared[MPG_PANEL_THREADS]; /* oneDNN's, per thread; NULL: not in use */
  char *packed, *scratch;
  size_t scratch_bytes; /* of a thread */
  void *own;            /* a convolution's, in the device's MPG_SCRATCH_LIBRARY */
} mpg_panels;

#define mpg_cpu_panels_begin MPG_CPU_NAME(panels_begin)
#define mpg_cpu_panel MPG_CPU_NAME(panel)
#define mpg_cpu_panels MPG_CPU_NAME(panels)
/* call: the op's, as if it were by itself, but for its outputs. threads: that will make panels, at
 * most MPG_PANEL_THREADS. tail: what mpg_panel_takes said yes to; NULL: nothing. */
mpg_status mpg_cpu_panels_begin(const mpg_kernel_call *call, const mpg_product *product,
                                const mpg_panel_tail *tail, int threads, mpg_panels *panels);
/* One panel, by the thread of that number, into `out`. */
mpg_status mpg_cpu_panel(const mpg_kernel_call *call, const mpg_panels *panels, int thread,
                         int64_t panel, float *out);
/* The op by itself: all of them. */
mpg_status mpg_cpu_panels(const mpg_kernel_call *call, const mpg_product *product);

/* A convolution's. */
#define mpg_cpu_winograd_begin MPG_CPU_NAME(winograd_begin)
#define mpg_cpu_winograd_panel MPG_CPU_NAME(winograd_panel)
mpg_status mpg_cpu_winograd_begin(const mpg_kernel_call *call, const mpg_panel_tail *tail,
                                  int threads, mpg_panels *panels);
void mpg_cpu_winograd_panel(const mpg_panels *panels, int thread, int64_t panel, float *out);

/* Whether the op makes panels with a tail, with the bits of the ops themselves. */
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
