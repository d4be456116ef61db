/* OpenMP for a compiler without it: one thread, and pragmas that are ignored. */
static inline int omp_get_max_threads(void) { return 1; }
static inline int omp_get_num_procs(void) { return 1; }
static inline void omp_set_num_threads(int count) { (void)count; }
