/* Strided views: the layout of an array within its base, from which it was derived by reshapes,
 * transposes and slices. Rules use the layout to read the base in place. A dimension is a list of
 * factors (size, stride), outermost first. A reshape redistributes the factors, a transpose
 * permutes them, and a slice shortens one. These are plain values, and the functions may be called
 * from any thread. */
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
  mpg_factor factors[MPG_VIEW_FACTORS]; /* factors of all dimensions; none has size 1 */
  int dims[MPG_VIEW_FACTORS];           /* the dimension of each factor, ascending */
} mpg_view_layout;

/* Sets the layout of the base itself. Returns false if it is empty. */
bool mpg_view_start(const mpg_shape *shape, mpg_view_layout *layout);
/* True for ops that mpg_view_apply may support: their outputs are views of their first input. */
bool mpg_view_op(const mpg_node *node);
/* Converts the layout of a node's first input to the layout of its output. Returns false if the
 * output is not a strided view. */
bool mpg_view_apply(const mpg_graph *graph, const mpg_node *node, uint32_t output,
                    mpg_view_layout *layout);
/* Appends a factor to dimension `dim`, which must be the last one so far. Merges it with the
 * previous factor if they are contiguous. Returns false if there are too many factors. */
bool mpg_view_push(mpg_view_layout *layout, int dim, int64_t size, int64_t stride);
/* Sets *factor to the only factor of a dimension. Returns false if the dimension has several. */
bool mpg_view_single(const mpg_view_layout *layout, int dim, mpg_factor *factor);

/* The leading dimensions [0, ndim) as two factors, batch and heads. If there is only one factor,
 * heads has size 1. */
typedef struct mpg_lead {
  int64_t size[2], stride[2];
} mpg_lead;
bool mpg_view_lead(const mpg_view_layout *layout, int ndim, mpg_lead *lead);
static inline int64_t mpg_lead_size(const mpg_lead *lead) { return lead->size[0] * lead->size[1]; }
/* Splits leads with a single factor so that all leads have the same sizes. Returns false if their
 * total sizes or their numbers of heads differ. */
bool mpg_lead_agree(mpg_lead *leads, int count);

#endif
