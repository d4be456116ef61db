/* Where the elements of an array lie in another one that it was made of by reshapes, transposes and
 * slices: for rules that read the other one in place. A dimension is a list of factors, outermost
 * first, each so many steps of so many elements; a reshape deals them out anew, a transpose moves
 * them, a slice shortens one. Plain values; any thread.
 */
#ifndef MPG_GRAPH_REWRITE_VIEW_H
#define MPG_GRAPH_REWRITE_VIEW_H

#include "graph/ir/graph.h"

typedef struct mpg_factor {
  int64_t size, stride;
} mpg_factor;

enum { MPG_VIEW_FACTORS = 24 };

typedef struct mpg_view_layout {
  int ndim, count;
  int64_t offset;
  mpg_factor factors[MPG_VIEW_FACTORS]; /* of all dimensions; none of size 1 */
  int dims[MPG_VIEW_FACTORS];           /* the dimension of each, ascending */
} mpg_view_layout;

bool mpg_view_start(const mpg_shape *shape,
                    mpg_view_layout *layout); /* of an array itself; false when it is empty */
/* An op that mpg_view_apply may know: its first input is what its outputs are views of. */
bool mpg_view_op(const mpg_node *node);
/* The layout of a node's output from that of its first input; false when it is none. */
bool mpg_view_apply(const mpg_graph *graph, const mpg_node *node, uint32_t output,
                    mpg_view_layout *layout);
/* Appends a factor to the last dimension, merging it with the one before where they are one run. */
bool mpg_view_push(mpg_view_layout *layout, int dim, int64_t size, int64_t stride);
/* A dimension as one factor. */
bool mpg_view_single(const mpg_view_layout *layout, int dim, mpg_factor *factor);

/* Dimensions [0, ndim) as two factors, batch and heads; one factor is `heads` of size 1. */
typedef struct mpg_lead {
  int64_t size[2], stride[2];
} mpg_lead;
bool mpg_view_lead(const mpg_view_layout *layout, int ndim, mpg_lead *lead);
static inline int64_t mpg_lead_size(const mpg_lead *lead) { return lead->size[0] * lead->size[1]; }
/* Brings leads to the same sizes, splitting those of one factor; false when they differ. */
bool mpg_lead_agree(mpg_lead *leads, int count);

#endif
