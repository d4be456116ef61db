/* Domains: the index spaces that fused ops share (op/fused.h).
 *
 * A domain is a list of dims, outermost first. A value is represented by the bit set of the dims
 * along which it varies, and its elements are row-major along these. Joining an op splits a dim if
 * shapes divide it differently: (N * T, C) becomes (N, T, C). Plain values. Threads: any.
 */
#ifndef MPG_GRAPH_SCHEDULE_DOMAIN_H
#define MPG_GRAPH_SCHEDULE_DOMAIN_H

#include "tensor/shape.h"

typedef struct mpg_domain {
  int ndim;
  int64_t dims[MPG_MAX_NDIM]; /* all > 1 */
} mpg_domain;

/* Map from old dims to new dims: of[i] is the bit set of the new dims that replace dim i. */
typedef struct mpg_domain_map {
  uint32_t of[MPG_MAX_NDIM];
} mpg_domain_map;

static inline uint32_t mpg_domain_all(const mpg_domain *domain) { return (1u << domain->ndim) - 1; }
/* Returns the number of elements of a value that varies along the dims `varying`. */
int64_t mpg_domain_size(const mpg_domain *domain, uint32_t varying);
uint32_t mpg_domain_apply(const mpg_domain_map *map, uint32_t varying);
/* Sets the domain to the dims of a shape that are not 1. */
void mpg_domain_of(const mpg_shape *shape, mpg_domain *domain);
/* Sets *varying to the dims of the domain of `whole` along which an array of shape `shape` varies
 * when it is broadcast to `whole`. Returns false if it does not broadcast to `whole`. */
bool mpg_domain_bits(const mpg_shape *shape, const mpg_shape *whole, uint32_t *varying);

/* Unifies the dims `varying` of `domain` with all dims of `other`, by splitting dims of `domain`.
 * `old` maps the previous bits of `domain`, and `joined` maps the bits of `other`. Returns false
 * and changes nothing if sizes do not divide each other or there are too many dims. */
bool mpg_domain_join(mpg_domain *domain, uint32_t varying, const mpg_domain *other,
                     mpg_domain_map *old, mpg_domain_map *joined);
/* Unifies all dims of `domain` with the dims `varying` of `other`. `domain` becomes the larger
 * `other`, with dims split as needed. */
bool mpg_domain_widen(mpg_domain *domain, const mpg_domain *other, uint32_t varying,
                      mpg_domain_map *old, mpg_domain_map *joined);

#endif
