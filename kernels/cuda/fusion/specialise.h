/* Fused groups as kernels of their own: C++ made of the group's program (fused.cu), compiled by
 * NVRTC once for each text and remembered by the process.
 *
 * The text depends on the steps, the operands' dtypes, how they lie in the domain, and rows;
 * addresses, constants, alignment and, where all operands are whole, the domain's size are
 * arguments. Where NVRTC is missing or cannot compile for the card (said once on stderr), or
 * MPGLUON_CUDA_NVRTC=0, nothing is fused. MPGLUON_CUDA_GROUPS names a folder that gets the text of
 * every group made, for reading and to be compiled by nvcc; then it is also an error that groups of
 * two texts have one key.
 *
 * Ownership: what is compiled lives as long as the process. Threads: any.
 */
#ifndef KERNELS_CUDA_FUSION_SPECIALISE_H
#define KERNELS_CUDA_FUSION_SPECIALISE_H

#include "op/fused.h"

enum mpg_step_kind {
  MPG_STEP_LOAD,
  MPG_STEP_STORE,
  MPG_STEP_ROUND,
  MPG_STEP_UNARY,
  MPG_STEP_BINARY,
  MPG_STEP_DRAW,   /* 1 where Dropout keeps an element, else 0; row: the draw, a: an operand whose
                      places are drawn, the constant: its threshold */
  MPG_STEP_DROP,   /* a where b is not 0, times the constant */
  MPG_STEP_REDUCE, /* of a row; row: an mpg_combine or NUMBERS, b: 1 for the mean */
  MPG_STEP_EXP,    /* as the kernels of softmax compute it */
  MPG_STEP_LOG,
  MPG_STEP_SHARE /* adds a to the columns of share number `row` */
};
enum { MPG_STEP_NUMBERS = 255 }; /* of a REDUCE: the largest; NaN loses */
enum {
  MPG_STEP_NOT_FIXED,
  MPG_STEP_FIXED_A,
  MPG_STEP_FIXED_B
}; /* an operand of a BINARY that is a constant */

typedef struct mpg_step {
  uint8_t kind, row; /* row: an mpg_formula_id, mostly */
  uint8_t dtype;     /* of the result */
  uint8_t to, a, b;  /* registers; LOAD: a, STORE: b is an operand */
  uint8_t fixed, constant;
} mpg_step;

typedef struct mpg_step_operand {
  void *data;       /* NULL: of a value without memory */
  uint32_t varying; /* as mpg_fused_value's */
  uint8_t dtype;
  bool whole, by_row,
      packed; /* along all dims; along none of a row; a thread's neighbours are its own, aligned */
} mpg_step_operand;

enum {
  MPG_STEP_MAX_OF_MEMBER = 20, /* of ops of rows; but for loads and stores */
  MPG_STEP_MAX_STEPS = MPG_STEP_MAX_OF_MEMBER * MPG_FUSED_MAX_MEMBERS + 2 * MPG_FUSED_MAX_VALUES,
  MPG_STEP_MAX_CONSTANTS = 3 * MPG_FUSED_MAX_MEMBERS,
  MPG_STEP_MAX_DRAWS = MPG_FUSED_MAX_MEMBERS,
  MPG_STEP_MAX_SHARES = MPG_FUSED_MAX_TRAILING
};
typedef struct mpg_step_program {
  int num_steps, num_operands, num_constants, num_registers, num_draws, ndim;
  int row; /* elements of a row, by whose end things are reduced; 0: there are none */
  int each, packs, lanes; /* a thread has `packs` times `each` neighbours (mpg_lanes) */
  int num_shares; /* sums of columns over all rows (layers/norm.h): blocks' shares of them */
  int block_rows; /* rows of a block, where there are shares */
  float *shares;  /* pairs of them: [pair][block][2][row] */
  int64_t dims[MPG_MAX_NDIM], count;
  mpg_step steps[MPG_STEP_MAX_STEPS];
  mpg_step_operand operands[MPG_FUSED_MAX_VALUES];
  float constants[MPG_STEP_MAX_CONSTANTS];
} mpg_step_program;

/* True where groups are compiled: NVRTC is there and makes code that the card takes. */
bool mpg_cuda_specialises(void);
unsigned mpg_specialised_blocks(const mpg_step_program *program);
/* Launches the program as a kernel of its own. */
mpg_status mpg_cuda_run_specialised(const mpg_kernel_call *call, const mpg_step_program *program);

/* The files that generated code includes, by the names it does; ends with NULL. Made by the build
 * (tools/native_build.py). */
extern const char *const mpg_cuda_source_names[], *const mpg_cuda_source_texts[];

#endif
