/* Matrix products computed in panels of rows (op/math/product.h). One thread computes each panel.
 * The weight is packed once for all panels, so all panels together cost no more than a single
 * product. Convolutions have their own implementation (winograd.c). The packed weight is in the
 * device's scratch slot MPG_SCRATCH_LIBRARY, so the caller must keep the slot until the last panel
 * is done.
 */
#ifndef KERNELS_CPU_PRODUCTS_PANELS_H
#define KERNELS_CPU_PRODUCTS_PANELS_H

#include "kernels/cpu/cpu.h"
#include "op/math/product.h"

enum { MPG_PANEL_THREADS = 64 };

/* Epilogue that a product applies to each element of its result, in this order: addition, then relu
 * or the gradient of relu. The arrays have the result's size; NULL means to skip the step. */
typedef struct mpg_panel_tail {
  const float *added, *gate; /* gate: relu's result, as for _backward_relu */
  bool relu;
} mpg_panel_tail;

typedef struct mpg_panels {
  mpg_product product;
  int64_t count;
  const float *a, *b, *bias;               /* bias may be NULL */
  const void *prepared[MPG_PANEL_THREADS]; /* per thread: oneDNN's operation, or NULL */
  char *packed, *scratch;
  size_t scratch_bytes; /* per thread */
  void *own;            /* state of a Winograd convolution, in MPG_SCRATCH_LIBRARY */
} mpg_panels;

/* Packs the weight and allocates scratch memory. `call` is the op's own call, whose outputs are
 * ignored. `threads` is the number of threads that compute panels, at most MPG_PANEL_THREADS.
 * `tail` must be NULL unless mpg_panel_takes returns true. */
mpg_status mpg_cpu_panels_begin(const mpg_kernel_call *call, const mpg_product *product,
                                const mpg_panel_tail *tail, int threads, mpg_panels *panels)
    MPG_PER_ISA(mpg_cpu_panels_begin);
/* Computes one panel into `out`, on the thread with index `thread`. */
mpg_status mpg_cpu_panel(const mpg_kernel_call *call, const mpg_panels *panels, int thread,
                         int64_t panel, float *out) MPG_PER_ISA(mpg_cpu_panel);
/* Runs an op that is not fused: begins the product and computes all panels. */
mpg_status mpg_cpu_panels(const mpg_kernel_call *call, const mpg_product *product)
    MPG_PER_ISA(mpg_cpu_panels);

/* Implementations of mpg_cpu_panels_begin and mpg_cpu_panel for Winograd convolutions. */
mpg_status mpg_cpu_winograd_begin(const mpg_kernel_call *call, const mpg_panel_tail *tail,
                                  int threads, mpg_panels *panels)
    MPG_PER_ISA(mpg_cpu_winograd_begin);
void mpg_cpu_winograd_panel(const mpg_panels *panels, int thread, int64_t panel, float *out)
    MPG_PER_ISA(mpg_cpu_winograd_panel);

/* True if the op can apply an mpg_panel_tail to its panels. The result is then bit-identical to
 * that of separate ops. */
static inline bool mpg_panel_takes(const mpg_op *op, const void *params) {
  return op->id == MPG_OP__winograd_convolution && !((const mpg_winograd_params *)params)->add &&
         !((const mpg_winograd_params *)params)->relu;
}

/* Returns the number of threads for a product. Each thread computes at least two panels. */
static inline int mpg_panel_threads(const mpg_kernel_call *call, const mpg_product *product) {
  int64_t most = product->m / mpg_product_panel(product, call->num_threads) / 2;
  if (most > MPG_PANEL_THREADS) most = MPG_PANEL_THREADS;
  return call->num_threads < most ? call->num_threads : (int)most;
}

#endif
