/* A fused group, as backends see it: ops that run tile by tile, so that intermediate results need
 * not be in memory.
 *
 * The group has a domain, a row-major box of dims. Each value of the group varies along some of
 * them and is broadcast along the others (where its size is 1). Tiles cut the domain along dims
 * 0..split only, each tile being whole along those behind it; what members make moves along all of
 * 0..split, so every tile makes its own part of everything once. A value's part of a tile that
 * fixes dims before d, takes a range of d, and is whole behind it is contiguous. Only trailing
 * reductions are otherwise: members that reduce a value of the whole domain over dims 0..k, split
 * <= k, keeping those behind. Their results are there when all tiles are done, and no member reads
 * them. A reduction's bits come from how it adds up; an op's kernel does so in chunks of so many
 * rows of the source, first within each and then their results in the same way, so tiles may be fed
 * into it in order and chunks go to different threads. A group may have a producer, a product that
 * comes in panels of rows (op/math/product.h). Its result moves along the whole domain; tiles of a
 * panel's rows may follow as soon as the panel is made, and where nobody else reads the result it
 * has no memory, but a panel's. A backend may run the members' kernels on each tile
 * (kernels/cpu/math/fused.c), or generate one kernel (one with a `fuses` function): members are in
 * order, an element's bits are those of the members' own kernels. Groups for generated kernels have
 * no producer. They reduce rows only: the whole domain along its last dims, the same in all
 * reductions and ops of rows (op/math/rows.h) of a group, MPG_FUSED_MAX_ROW elements at most of one
 * dtype; and their trailing reductions are what ops of rows sum over all rows.
 *
 * Call of a fused kernel: call->params is the group, inputs and outputs are its values outside
 * (operands). Owned by the program. `views` and `keys` belong to whoever runs the call; the rest is
 * constant.
 */
#ifndef MPG_OP_FUSED_H
#define MPG_OP_FUSED_H

#include "op/kernel.h"
#include "op/math/product.h"

#define MPG_FUSED_LOCAL UINT32_MAX
#define MPG_FUSED_PANEL (UINT32_MAX - 1)
enum { MPG_FUSED_MAX_MEMBERS = 64, MPG_FUSED_MAX_VALUES = 128, MPG_FUSED_MAX_TRAILING = 8 };

enum { MPG_FUSED_MAX_ROW = 8192 }; /* elements of a row that a generated kernel reduces */

enum { MPG_REDUCTION_CHUNK = 16384 }; /* elements, about */

/* Rows (elements, where inner is 1) of a chunk of a reduction of (count, inner) to (inner). */
static inline int64_t mpg_reduction_chunk(int64_t count, int64_t inner) {
  int64_t length = inner >= MPG_REDUCTION_CHUNK / 64 ? 64 : MPG_REDUCTION_CHUNK / inner;
  if (count <= length + length / 2) length = count;
  return length > 0 ? length : 1;
}

typedef struct mpg_fused_value {
  mpg_dtype dtype;
  uint32_t varying;              /* bit i: along dim i */
  int64_t strides[MPG_MAX_NDIM]; /* in elements; 0 where it is broadcast */
  uint32_t operand; /* of the call: inputs, then outputs; LOCAL: no memory but a tile's; PANEL: of a
                       producer's result, but a panel's */
  uint32_t slot;    /* of a local one; those of one slot live one after the other */
} mpg_fused_value;

typedef struct mpg_fused_draw { /* of a random member */
  uint32_t call;                /* its number within the graph */
  mpg_shape shape;              /* of its random draws */
} mpg_fused_draw;

typedef struct mpg_fused_member {
  const mpg_op *op;
  const void *params; /* axes count from the end of the domain */
  mpg_kernel_fn kernel;
  uint32_t operands, num_inputs, num_outputs; /* first of its operands; inputs, then outputs */
  uint32_t draw;                              /* number of its draw; UINT32_MAX: not random */
  bool train;
  bool trailing;
} mpg_fused_member;

typedef struct mpg_fused_producer {
  const mpg_op *op; /* NULL: there is none */
  const void *params;
  mpg_product product;
  uint32_t first_input, num_inputs; /* of the call */
  uint32_t value;                   /* that it makes */
} mpg_fused_producer;

typedef struct mpg_fused {
  int ndim, split; /* split -1: one tile */
  int64_t dims[MPG_MAX_NDIM];
  uint32_t row; /* dims of rows, in a generated kernel; 0: there are none */
  mpg_dtype row_dtype;
  uint32_t num_members, num_values, num_operands, num_slots, num_draws, num_trailing;
  mpg_fused_producer producer;
  const mpg_fused_member *members;
  const mpg_fused_value *values;
  const uint32_t *operands;  /* values, by members' operands; MPG_FUSED_LOCAL: no contents */
  const uint8_t *slot_bytes; /* per slot: of its largest element */
  const mpg_fused_draw *draws;
  mpg_random_key *keys; /* of the draws; where call->random_at is not NULL they are there instead */
  mpg_view *views;      /* per operand: its desc on the whole domain */
  bool reduces;         /* a member asks for scratch, at most two doubles an element */
  const char *name;     /* "sum+mul+relu" */
} mpg_fused;

/* Whether the fused kernels of a device type can compute an op; dtypes: of its inputs, then
 * outputs. NULL: all ops. Set once when the backend's library is loaded. */
typedef bool (*mpg_fuses_fn)(const mpg_op *op, const void *params, const mpg_dtype *dtypes,
                             int count);
void mpg_kernels_set_fuses(mpg_device_type type, mpg_fuses_fn fuses);
mpg_fuses_fn mpg_kernel_get_fuses(const mpg_device *device);

#endif
