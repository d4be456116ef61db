/* Domains: the boxes of indices that fused ops share (op/fused.h).
 *
 * A domain is a list of dims, outermost first. A value is a set of bits, the dims along which it
 * moves; its elements lie row-major along these. Joining an op refines dims where shapes cut them
 * differently, (N * T, C) being (N, T, C) too. Plain values. Threads: any.
 */
#ifndef MPG_GRAPH_SCHEDULE_DOMAIN_H
#define MPG_GRAPH_SCHEDULE_DOMAIN_H

#include "tensor/shape.h"

typedef struct mpg_domain {
  int ndim;
  int64_t dims[MPG_MAX_NDIM]; /* > 1 */
} mpg_domain;

/* A change of dims: bits of the old ones, as bits of the new. */
typedef struct mpg_domain_map {
  uint32_t of[MPG_MAX_NDIM];
} mpg_domain_map;

static inline uint32_t mpg_domain_all(const mpg_domain *domain) { return (1u << domain->ndim) - 1; }
int64_t mpg_domain_size(const mpg_domain *domain, uint32_t varying); /* elements of a value */
uint32_t mpg_domain_apply(const mpg_domain_map *map, uint32_t varying);
/* A shape's dims that are not 1. */
void mpg_domain_of(const mpg_shape *shape, mpg_domain *domain);
/* The dims of `shape`, broadcast to `whole`, as bits of the domain of `whole`. False where it does
 * not broadcast. */
bool mpg_domain_bits(const mpg_shape *shape, const mpg_shape *whole, uint32_t *varying);

/* Makes the dims `varying` of `domain` and all of `other` the same index: refines `domain`; `old`
 * maps its bits, `joined` those of `other`. False (and nothing changed) when sizes do not divide
 * each other, or there are too many dims. */
bool mpg_domain_join(mpg_domain *domain, uint32_t varying, const mpg_domain *other,
                     mpg_domain_map *old, mpg_domain_map *joined);
/* Makes all of `domain` and the dims `varying` of `other` the same index; `domain` becomes the
 * larger `other`, refined. */
bool mpg_domain_widen(mpg_domain *domain, const mpg_domain *other, uint32_t varying,
                      mpg_domain_map *old, mpg_domain_map *joined);

#endif
