/* Checks that a graph may be run on the micro-batches of a pipeline one by one, by the batching
 * rules of its ops (op/batching/batching.h) and the shapes alone.
 *
 * Along time a micro-batch is a chunk of steps, which gets the state that the chunk before has
 * left. Values computed with the state are accepted. A value computed from several steps of one
 * chunk without the state (a mean, positions that begin at 0) may only become state itself.
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
  const uint8_t *output_kinds; /* per output of the graph: STATE goes to the next chunk; others must
                                  be divided */
  int64_t rows;                /* of the micro-batch */
  int axis;                    /* the axis of rows in arrays that the graph creates */
  bool along_time;
  mpg_drawn *drawn;   /* receives, per random call of the graph, where the rows lie in it; zeroed;
                         NULL: not wanted */
  uint32_t num_drawn; /* the room of `drawn` */
  bool whole_statistics; /* moving averages are updated outside, of the whole: no op may change its
                            states */
} mpg_batching_request;

/* Fails, naming the op and its block, or the result. */
mpg_status mpg_graph_check_batching(const mpg_graph *graph, const mpg_batching_request *request);
/* Checks one function traced for two numbers of rows. Sizes and numbers in the graph must not
 * depend on the number of rows in another way than the arrays' rows do (x / len(x)). Traces with
 * different nodes (a loop over steps) are checked separately. If the first has one row, the second
 * determines which axis of size 1 is the batch axis. */
mpg_status mpg_graph_compare_batching(const mpg_graph *graph, const mpg_batching_request *request,
                                      const mpg_graph *second, const mpg_batching_request *other);

#endif
