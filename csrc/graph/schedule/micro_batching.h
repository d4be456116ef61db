/* Whether a graph may be run on the micro-batches of a pipeline one by one: every op is asked by
 * its batching rule (op/batching/batching.h), from the shapes alone.
 *
 * Along time there is more to it: a piece takes up what the piece before left as its state. What is
 * made with that is taken to be meant so; what a piece makes of several of its steps without it (a
 * mean, positions that begin at 0) may only become state itself.
 *
 * Threads: host lock. Nothing is owned.
 */
#ifndef MPG_GRAPH_SCHEDULE_MICRO_BATCHING_H
#define MPG_GRAPH_SCHEDULE_MICRO_BATCHING_H

#include "graph/ir/graph.h"
#include "op/batching/batching.h"

typedef struct mpg_batching_request {
  const mpg_value *inputs;    /* others are constants */
  const uint8_t *input_kinds; /* mpg_batch_kind; DIVIDED ones along their first axis */
  uint32_t num_inputs;
  const uint8_t *output_kinds; /* per output of the graph: STATE becomes the next piece's; others
                                  must be divided */
  int64_t rows;                /* of the micro-batch */
  int axis;                    /* along which arrays that are made inside have rows */
  bool along_time;
  mpg_drawn *drawn; /* receives, per random call of the graph, where the rows lie in it; zeroed;
                       NULL: nobody asks */
  bool whole_statistics; /* moving averages are updated outside, of the whole: no op may change its
                            states */
} mpg_batching_request;

/* Fails, naming the op and its block, or the result. */
mpg_status mpg_graph_check_batching(const mpg_graph *graph, const mpg_batching_request *request);
/* Checks the same function traced for two numbers of rows: also, that sizes and numbers which were
 * written down do not depend on it in another way than rows do (x / len(x)). Traces that have other
 * nodes (a loop over steps) are checked each for itself. */
mpg_status mpg_graph_compare_batching(const mpg_graph *graph, const mpg_batching_request *request,
                                      const mpg_graph *second, const mpg_batching_request *other);

#endif
