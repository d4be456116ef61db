/* LRU cache of plans. A plan is data that a kernel prepares once per signature of a call, such as
 * descriptors and an algorithm, and reuses for all calls with that signature. The cache keeps the
 * MPG_PLANS most recently used plans, or all plans. It is a member of its owner's struct and is
 * used only by the device's worker thread.
 *
 * A Plan type has a signature `key` and the links next, newer and older. Keys are compared as
 * bytes, so they must not have padding, and their size must be a multiple of 8. Plans are allocated
 * by mpg_calloc.
 */
#ifndef KERNELS_CUDA_RUNTIME_PLANS_H
#define KERNELS_CUDA_RUNTIME_PLANS_H

#include <string.h>

extern "C" {
#include "base/memory.h"
}

enum { MPG_PLANS = 1024, MPG_PLAN_PLACES = 2048 };

template <class Plan>
struct mpg_plans {
  int count;
  bool all_stay;         /* disables eviction */
  Plan *newest, *oldest; /* LRU order */
  Plan *table[MPG_PLAN_PLACES];
};

template <class Key>
static uint64_t mpg_plan_hash(const Key &key) {
  static_assert(sizeof(Key) % 8 == 0, "compared and hashed in words");
  uint64_t words[sizeof key / 8], hash = 0x9E3779B97F4A7C15u;
  memcpy(words, &key, sizeof key);
  for (size_t i = 0; i < sizeof key / 8; i++) {
    hash = (hash ^ words[i]) * 0xff51afd7ed558ccdu;
    hash ^= hash >> 32;
  }
  return hash;
}

template <class Plan>
static void mpg_plans_unlink(mpg_plans<Plan> *all, Plan *p) {
  *(p->newer ? &p->newer->older : &all->newest) = p->older;
  *(p->older ? &p->older->newer : &all->oldest) = p->newer;
}

template <class Plan>
static void mpg_plans_make_newest(mpg_plans<Plan> *all, Plan *p) {
  p->newer = NULL;
  p->older = all->newest;
  *(all->newest ? &all->newest->newer : &all->oldest) = p;
  all->newest = p;
}

/* Frees all plans. destroy(plan) frees a plan and its contents. */
template <class Plan, class Destroy>
static void mpg_plans_clear(mpg_plans<Plan> *all, Destroy destroy) {
  while (all->newest) {
    Plan *older = all->newest->older;
    destroy(all->newest);
    all->newest = older;
  }
}

/* Sets *found to the plan of `key`. If it does not exist, creates it: build(plan) fills a zeroed
 * plan whose key is set. If `build` fails, the plan is destroyed and the call fails. May evict the
 * least recently used plan. */
template <class Plan, class Key, class Build, class Destroy>
static mpg_status mpg_plans_find(mpg_plans<Plan> *all, const Key &key, Build build, Destroy destroy,
                                 Plan **found) {
  Plan **place = &all->table[mpg_plan_hash(key) % MPG_PLAN_PLACES], *p;
  for (p = *place; p; p = p->next)
    if (!memcmp(&p->key, &key, sizeof key)) break;
  if (p && p != all->newest) {
    mpg_plans_unlink(all, p);
    mpg_plans_make_newest(all, p);
  }
  if (!p) {
    if (!(p = (Plan *)mpg_calloc(1, sizeof *p))) return mpg_out_of_host_memory(sizeof *p);
    p->key = key;
    mpg_status status = build(p);
    if (status != MPG_OK) {
      destroy(p);
      return status;
    }
    if (all->count >= MPG_PLANS && !all->all_stay) {
      Plan *last = all->oldest, **link = &all->table[mpg_plan_hash(last->key) % MPG_PLAN_PLACES];
      while (*link != last) link = &(*link)->next;
      *link = last->next;
      mpg_plans_unlink(all, last);
      destroy(last);
      all->count--;
    }
    p->next = *place;
    *place = p;
    mpg_plans_make_newest(all, p);
    all->count++;
  }
  *found = p;
  return MPG_OK;
}

#endif
