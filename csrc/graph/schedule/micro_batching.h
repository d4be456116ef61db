/* Checks that a graph may be run on the micro-batches of a pipeline one by one, using only the
 * batching rules of its ops (op/batching/batching.h) and shapes.
 *
 * Along time, a micro-batch is a chunk of steps, which starts from the state of the previous chunk.
 * Values computed with the state are accepted. A value computed from several steps of one chunk
 * without the state (a mean, positions that begin at 0) may only become part of the state.
 *
 * Ownership: nothing is owned. Threads: callers hold the host lock.
 */
#ifndef MPG_GRAPH_SCHEDULE_MICRO_BATCHING_H
#define MPG_GRAPH_SCHEDULE_MICRO_BATCHING_H

#include "graph/ir/graph.h"
#include "op/batching/batching.h"

typedef struct mpg_batching_request {
  const mpg_value *inputs; /* the remaining inputs of the graph are constants */
  /* Per input: mpg_batch_kind. DIVIDED inputs are divided along their first axis. */
  const uint8_t *input_kinds;
  uint32_t num_inputs;
  /* Per output of the graph: STATE outputs are passed to the next chunk. All other outputs must be
   * divided. */
  const uint8_t *output_kinds;
  int64_t rows; /* number of rows in the micro-batch */
  int axis;     /* axis of the rows in arrays that the graph creates */
  bool along_time;
  /* Receives the position of the rows in each random call of the graph. Zeroed by the caller; NULL
   * if not requested. */
  mpg_drawn *drawn;
  uint32_t num_drawn; /* capacity of `drawn` */
  /* If true, moving averages are updated outside the graph, for the whole batch. Ops that update
   * them inside the graph are then rejected. */
  bool whole_statistics;
} mpg_batching_request;

/* Checks that the graph can be divided as requested. On failure, the error names the op and its
 * block, or the output. */
mpg_status mpg_graph_check_batching(const mpg_graph *graph, const mpg_batching_request *request);
/* Checks two traces of one function, made with different numbers of rows. Sizes in the graph must
 * scale with the arrays' rows, and numeric parameters must not depend on the number of rows, as in
 * x / len(x). Traces with different nodes (a loop over steps) are checked separately. If the first
 * trace has one row, the second trace determines which axis of size 1 is the batch axis. */
mpg_status mpg_graph_compare_batching(const mpg_graph *graph, const mpg_batching_request *request,
                                      const mpg_graph *second, const mpg_batching_request *other);
/* Marks a random call as rowless if its draw has the same shape in both traces, which have
 * different numbers of rows. `drawn` has num_drawn entries, at least one for each random call of
 * `graph`; the caller owns it. If the traces have different numbers of random calls, no call is
 * marked. */
mpg_status mpg_graph_compare_draws(const mpg_graph *graph, const mpg_graph *second,
                                   mpg_drawn *drawn, uint32_t num_drawn);

#endif
