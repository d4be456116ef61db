// Runs the CUDA threads of a block on fibers of one host thread. A fiber runs one CUDA thread after
// another until one must wait, at a barrier or for its warp. Then another fiber starts with the
// next CUDA thread that has not started. A kernel without barriers therefore needs only one fiber
// switch per block.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <sys/mman.h>
#ifndef __x86_64__
#include <ucontext.h>
#endif
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

#include "cuda_runtime.h"
#include "fibers.h"

thread_local uint3 threadIdx, blockIdx;
thread_local dim3 blockDim, gridDim;

namespace {

enum { STACK = 256 << 10, LANES = 32, MAX_SHARED = 232448 };

[[noreturn]] void die(const char *text) {
  fprintf(stderr, "hostcuda: %s (block %u,%u,%u; thread %u,%u,%u)\n", text, blockIdx.x, blockIdx.y,
          blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z);
  abort();
}

struct fiber {
  void *stack_pointer = nullptr;
  char *stack = nullptr;
  unsigned thread = 0;             // index of the CUDA thread that it runs
  const uint64_t *waits = nullptr; // if blocked: until this counter differs from `seen`
  uint64_t seen = 0;
#ifndef __x86_64__
  ucontext_t context;
#endif
};

struct warp {
  uint64_t generation = 0;
  // Bit masks of lanes; `finished` includes lanes that do not exist.
  unsigned arrived = 0, mask = 0, finished = 0;
  uint64_t values[2][LANES];
  unsigned ballots[2] = {0, 0};
};

struct block {
  const std::function<void()> *body = nullptr;
  unsigned threads = 0, next = 0, finished = 0;
  unsigned arrived = 0;
  uint64_t generation = 0;
  int count[2] = {0, 0};
  std::vector<warp> warps;
  std::vector<fiber *> blocked;
};

struct runner { // state of a host thread
  block now;
  fiber *current = nullptr;
  std::vector<fiber *> idle;
  std::vector<uint64_t> shared;
  void *stack_pointer = nullptr; // of the scheduler
#ifndef __x86_64__
  ucontext_t context;
#endif
#ifdef __SANITIZE_ADDRESS__
  void *fake = nullptr;
  const void *bottom = nullptr;
  size_t size = 0;
#endif
};
thread_local runner *run;

#ifdef __x86_64__
extern "C" void hostcuda_switch(void **from, void *to);
__asm__(
    ".text\n.globl hostcuda_switch\n.hidden hostcuda_switch\n.type "
    "hostcuda_switch,@function\nhostcuda_switch:\n"
    "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
    "  movq %rsp, (%rdi)\n  movq %rsi, %rsp\n"
    "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n  ret\n"
    ".size hostcuda_switch,.-hostcuda_switch\n");
#endif

void to_fiber(fiber *f) {
  run->current = f;
#ifdef __SANITIZE_ADDRESS__
  void *fake = nullptr;
  __sanitizer_start_switch_fiber(&fake, f->stack, STACK);
#endif
#ifdef __x86_64__
  hostcuda_switch(&run->stack_pointer, f->stack_pointer);
#else
  swapcontext(&run->context, &f->context);
#endif
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
}

void to_scheduler() {
  fiber *f = run->current;
#ifdef __SANITIZE_ADDRESS__
  void *fake = nullptr;
  __sanitizer_start_switch_fiber(&fake, run->bottom, run->size);
#endif
#ifdef __x86_64__
  hostcuda_switch(&f->stack_pointer, run->stack_pointer);
#else
  swapcontext(&f->context, &run->context);
#endif
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(fake, &run->bottom, &run->size);
#endif
}

void take_place(unsigned thread) {
  unsigned x = blockDim.x, y = blockDim.y;
  threadIdx = {thread % x, thread / x % y, thread / (x * y)};
}

void wait_on(const uint64_t *counter) {
  fiber *f = run->current;
  f->waits = counter;
  f->seen = *counter;
  run->now.blocked.push_back(f);
  to_scheduler();
  take_place(f->thread);
}

void release_warp(warp &w) {
  unsigned needed = w.mask & ~w.finished;
  if (!w.arrived || (w.arrived & needed) != needed) return;
  w.arrived = w.mask = 0;
  w.generation++;
  w.ballots[w.generation & 1] = 0;
}

void release_block(block &b) {
  if (!b.arrived || b.arrived != b.threads - b.finished) return;
  b.arrived = 0;
  b.generation++;
  b.count[b.generation & 1] = 0;
}

void fiber_main() {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(nullptr, &run->bottom, &run->size);
#endif
  for (;;) {
    block &b = run->now;
    while (b.next < b.threads) {
      unsigned thread = b.next++;
      run->current->thread = thread;
      take_place(thread);
      (*b.body)();
      b.finished++;
      warp &w = b.warps[thread / LANES];
      w.finished |= 1u << (thread % LANES);
      release_warp(w);
      release_block(b);
    }
    run->idle.push_back(run->current);
    to_scheduler();
  }
}

fiber *new_fiber() {
  if (!run->idle.empty()) {
    fiber *f = run->idle.back();
    run->idle.pop_back();
    return f;
  }
  fiber *f = new fiber;
  void *memory = mmap(nullptr, STACK, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) die("no memory for a thread's stack");
  f->stack = (char *)memory;
#ifdef __x86_64__
  void **top = (void **)(f->stack + STACK);
  *--top = nullptr;            // the ABI requires rsp % 16 == 8 at a function's entry
  *--top = (void *)fiber_main; // return address
  for (int i = 0; i < 6; i++) *--top = nullptr;
  f->stack_pointer = top;
#else
  getcontext(&f->context);
  f->context.uc_stack.ss_sp = f->stack;
  f->context.uc_stack.ss_size = STACK;
  makecontext(&f->context, fiber_main, 0);
#endif
  return f;
}

void run_block(const std::function<void()> &body) {
  block &b = run->now;
  b.body = &body;
  b.threads = blockDim.x * blockDim.y * blockDim.z;
  b.next = b.finished = b.arrived = 0;
  b.generation = 0;
  b.count[0] = b.count[1] = 0;
  b.warps.assign((b.threads + LANES - 1) / LANES, warp());
  if (b.threads % LANES) b.warps.back().finished = ~0u << (b.threads % LANES);
  b.blocked.clear();
  while (b.finished < b.threads) {
    bool moved = b.next < b.threads;
    if (moved) to_fiber(new_fiber());
    std::vector<fiber *> waiting;
    waiting.swap(b.blocked);
    for (fiber *f : waiting) {
      if (b.next < b.threads || *f->waits == f->seen) {
        b.blocked.push_back(f);
        continue;
      }
      moved = true;
      to_fiber(f);
    }
    if (!moved) die("threads of a block wait for each other at different places");
  }
}

} // namespace

void hostcuda_run(const cudaLaunchConfig_t &config, const std::function<void()> &body) {
  if (!run) run = new runner;
  blockDim = config.blockDim;
  gridDim = config.gridDim;
  run->shared.resize((config.dynamicSmemBytes + 15) / 8);
  for (unsigned z = 0; z < gridDim.z; z++)
    for (unsigned y = 0; y < gridDim.y; y++)
      for (unsigned x = 0; x < gridDim.x; x++) {
        blockIdx = {x, y, z};
        if (!run->shared.empty()) memset(run->shared.data(), 0xcb, run->shared.size() * 8);
        run_block(body);
      }
}

void *hostcuda_shared(void) { return run->shared.data(); }
unsigned hostcuda_lane(void) { return run->current->thread % LANES; }

static int barrier(int predicate, int *all) {
  block &b = run->now;
  unsigned parity = b.generation & 1;
  b.count[parity] += predicate != 0;
  uint64_t before = b.generation;
  b.arrived++;
  release_block(b);
  if (b.generation == before) wait_on(&b.generation);
  if (all) *all = (int)(b.threads - b.finished);
  return b.count[parity];
}
void __syncthreads(void) { barrier(0, nullptr); }
int __syncthreads_or(int predicate) { return barrier(predicate, nullptr) != 0; }
int __syncthreads_and(int predicate) { return barrier(!predicate, nullptr) == 0; }
int __syncthreads_count(int predicate) { return barrier(predicate, nullptr); }

static warp &meet(unsigned mask, uint64_t bits, int predicate, unsigned *parity) {
  fiber *f = run->current;
  warp &w = run->now.warps[f->thread / LANES];
  unsigned lane = f->thread % LANES;
  if (!(mask >> lane & 1)) die("a thread that is not in the mask takes part");
  if (w.arrived && w.mask != mask) die("threads of a warp meet with different masks");
  *parity = w.generation & 1;
  w.mask = mask;
  w.arrived |= 1u << lane;
  w.values[*parity][lane] = bits;
  if (predicate) w.ballots[*parity] |= 1u << lane;
  uint64_t before = w.generation;
  release_warp(w);
  if (w.generation == before) wait_on(&w.generation);
  return w;
}
uint64_t hostcuda_shuffle(unsigned mask, uint64_t bits, unsigned source) {
  unsigned parity;
  warp &w = meet(mask, bits, 0, &parity);
  return w.values[parity][source & (LANES - 1)];
}
unsigned hostcuda_ballot(unsigned mask, int predicate) {
  unsigned parity;
  warp &w = meet(mask, 0, predicate, &parity);
  return w.ballots[parity];
}
