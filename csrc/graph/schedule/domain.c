/* Joins, widens and maps the domains of fused groups. */
#include "graph/schedule/domain.h"

#include <string.h>

int64_t mpg_domain_size(const mpg_domain *domain, uint32_t varying) {
  int64_t size = 1;
  for (int i = 0; i < domain->ndim; i++)
    if (varying >> i & 1) size *= domain->dims[i];
  return size;
}

uint32_t mpg_domain_apply(const mpg_domain_map *map, uint32_t varying) {
  uint32_t result = 0;
  for (int i = 0; i < MPG_MAX_NDIM; i++)
    if (varying >> i & 1) result |= map->of[i];
  return result;
}

void mpg_domain_of(const mpg_shape *shape, mpg_domain *domain) {
  domain->ndim = 0;
  for (int i = 0; i < shape->ndim; i++)
    if (shape->dims[i] != 1) domain->dims[domain->ndim++] = shape->dims[i];
}

bool mpg_domain_bits(const mpg_shape *shape, const mpg_shape *whole, uint32_t *varying) {
  int bit = 0;
  *varying = 0;
  for (int i = 0; i < shape->ndim - whole->ndim; i++)
    if (shape->dims[i] != 1) return false;
  for (int i = 0; i < whole->ndim; i++) {
    int at = i - (whole->ndim - shape->ndim);
    int64_t dim = at >= 0 ? shape->dims[at] : 1;
    if (dim != 1 && dim != whole->dims[i]) return false;
    if (whole->dims[i] == 1) continue;
    if (dim != 1) *varying |= 1u << bit;
    bit++;
  }
  return true;
}

/* Coarsest common refinement of two shapes a and b with the same number of elements. For example,
 * the pieces of (6, 4) and (3, 8) are (3, 2, 4). Each piece is a factor of one dim of a and of one
 * dim of b. */
typedef struct pieces {
  int count;
  int64_t dims[2 * MPG_MAX_NDIM];
  int of_a[2 * MPG_MAX_NDIM], of_b[2 * MPG_MAX_NDIM]; /* per piece: its dim in a and in b */
} pieces;

static bool cut(const int64_t *a, int na, const int64_t *b, int nb, pieces *p) {
  int i = na - 1, j = nb - 1, count = 0;
  int64_t left_a = na ? a[i] : 1, left_b = nb ? b[j] : 1;
  int64_t dims[2 * MPG_MAX_NDIM];
  int of_a[2 * MPG_MAX_NDIM], of_b[2 * MPG_MAX_NDIM];
  while (i >= 0 && j >= 0) { /* innermost first */
    int64_t piece = left_a < left_b ? left_a : left_b;
    if (left_a % piece || left_b % piece) return false;
    dims[count] = piece;
    of_a[count] = i;
    of_b[count++] = j;
    left_a /= piece;
    left_b /= piece;
    if (left_a == 1 && --i >= 0) left_a = a[i];
    if (left_b == 1 && --j >= 0) left_b = b[j];
  }
  if (i >= 0 || j >= 0) return false;
  p->count = count;
  for (int k = 0; k < count; k++) {
    p->dims[k] = dims[count - 1 - k];
    p->of_a[k] = of_a[count - 1 - k];
    p->of_b[k] = of_b[count - 1 - k];
  }
  return true;
}

static int select_dims(const mpg_domain *domain, uint32_t varying, int64_t *dims, int *from) {
  int count = 0;
  for (int i = 0; i < domain->ndim; i++) {
    if (!(varying >> i & 1)) continue;
    from[count] = i;
    dims[count++] = domain->dims[i];
  }
  return count;
}

/* Sets `result` to `whole` with its dims in `varying` replaced by the pieces of p. Sets map_mine to
 * map the dims of `whole` to those of `result`, and map_others to map the dims of the other domain.
 * Piece k belongs to dim from_mine[mine[k]] of `whole` and to dim from_others[others[k]] of the
 * other domain. Returns false if the result has too many dims. */
static bool refine(const mpg_domain *whole, const int *mine, const int *others,
                   const int *from_mine, const int *from_others, const pieces *p, uint32_t varying,
                   mpg_domain *result, mpg_domain_map *map_mine, mpg_domain_map *map_others) {
  memset(map_mine, 0, sizeof *map_mine);
  memset(map_others, 0, sizeof *map_others);
  int count = 0, k = 0;
  for (int i = 0; i < whole->ndim; i++) {
    if (!(varying >> i & 1)) {
      if (count == MPG_MAX_NDIM) return false;
      map_mine->of[i] = 1u << count;
      result->dims[count++] = whole->dims[i];
      continue;
    }
    for (; k < p->count && from_mine[mine[k]] == i; k++) {
      if (count == MPG_MAX_NDIM) return false;
      map_mine->of[i] |= 1u << count;
      map_others->of[from_others[others[k]]] |= 1u << count;
      result->dims[count++] = p->dims[k];
    }
  }
  result->ndim = count;
  return true;
}

bool mpg_domain_join(mpg_domain *domain, uint32_t varying, const mpg_domain *other,
                     mpg_domain_map *old, mpg_domain_map *joined) {
  int64_t dims[MPG_MAX_NDIM];
  int from[MPG_MAX_NDIM], same[MPG_MAX_NDIM];
  pieces p;
  mpg_domain result;
  for (int i = 0; i < MPG_MAX_NDIM; i++) same[i] = i;
  int count = select_dims(domain, varying, dims, from);
  if (!cut(dims, count, other->dims, other->ndim, &p)) return false;
  if (!refine(domain, p.of_a, p.of_b, from, same, &p, varying, &result, old, joined)) return false;
  *domain = result;
  return true;
}

bool mpg_domain_widen(mpg_domain *domain, const mpg_domain *other, uint32_t varying,
                      mpg_domain_map *old, mpg_domain_map *joined) {
  int64_t dims[MPG_MAX_NDIM];
  int from[MPG_MAX_NDIM], same[MPG_MAX_NDIM];
  pieces p;
  mpg_domain result;
  for (int i = 0; i < MPG_MAX_NDIM; i++) same[i] = i;
  int count = select_dims(other, varying, dims, from);
  if (!cut(domain->dims, domain->ndim, dims, count, &p)) return false;
  if (!refine(other, p.of_b, p.of_a, from, same, &p, varying, &result, joined, old)) return false;
  *domain = result;
  return true;
}
