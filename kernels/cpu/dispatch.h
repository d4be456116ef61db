/* Selects the build of the CPU kernels: the best instruction set that was built and that the
 * processor supports. The setting MPGLUON_ISA_RUN (base, v3, v4) selects a lower one. Safe on any
 * thread.
 */
#ifndef KERNELS_CPU_DISPATCH_H
#define KERNELS_CPU_DISPATCH_H

#include "op/kernel.h"

const mpg_kernel_fn *mpg_cpu_kernel_table(void); /* indexed by mpg_op_id */
mpg_kernel_fn mpg_cpu_fused_kernel(void);        /* runs the fused groups of op/fused.h */
const char *mpg_cpu_isa_name(void);              /* for example "v4" */

#endif
