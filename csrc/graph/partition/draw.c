/* Random numbers of divided nodes: each place draws its part of the numbers of one device. */
#include "graph/partition/expand.h"

/* Returns the part of the draw that the node draws for a cut along axis m of the mesh. */
static mpg_random_part drawn_part(const mpg_partitioning *p, uint32_t n, const mpg_mesh *mesh,
                                  int m, const mpg_coordinates *place) {
  const mpg_part_node *part = &p->nodes[n];
  mpg_shape drawn;
  mpg_digit digit = mpg_part_drawn(part, &part->rule.factors[part->cuts[m].factor], &drawn);
  mpg_cut cut = mpg_part_cut_of(&part->cuts[m], &digit);
  int64_t inner = cut.digit.inner * mpg_shape_product(&drawn, cut.digit.axis + 1, drawn.ndim);
  int64_t begin = mpg_mesh_begin(mesh, m, cut.size, place->at[m]),
          count = mpg_mesh_count(mesh, m, cut.size, place->at[m]);
  return (mpg_random_part){.position = (uint64_t)(begin * inner),
                           .run = (uint64_t)(count * inner),
                           .stride = (uint64_t)(cut.size * inner)};
}

void mpg_expand_draw(mpg_expansion *e, uint32_t n, const mpg_mesh *mesh,
                     const mpg_coordinates *place, mpg_value output, uint32_t num_random) {
  const mpg_node *node = &e->p->graph->nodes[n];
  const mpg_part_node *part = &e->p->nodes[n];
  if (node->random == MPG_NO_RANDOM) return;
  mpg_node *made = &e->target->nodes[output.node];
  made->random = node->random;
  for (int m = 0; m < mesh->num_axes; m++)
    if (part->cuts[m].factor >= 0 && part->rule.factors[part->cuts[m].factor].counts)
      made->draw = drawn_part(e->p, n, mesh, m, place);
  e->target->num_random = num_random;
}
