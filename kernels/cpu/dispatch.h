/* Which build of the CPU kernels this processor runs: the best instruction set that was built and
 * that it has. The setting MPGLUON_ISA_RUN (base, v3, v4) picks a lesser one. Any thread.
 */
#ifndef KERNELS_CPU_DISPATCH_H
#define KERNELS_CPU_DISPATCH_H

#include "op/kernel.h"

const mpg_kernel_fn *mpg_cpu_kernel_table(void); /* indexed by mpg_op_id */
mpg_kernel_fn mpg_cpu_fused_kernel(void);        /* runs groups of op/fused.h */
const char *mpg_cpu_isa_name(void);              /* "v4" */

#endif
