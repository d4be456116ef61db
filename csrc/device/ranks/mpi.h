/* Functions of the MPI library that the host program has opened. They are resolved at run time, so
 * the build does not need MPI.
 *
 * An MPI handle is an int or a pointer, depending on the implementation. Here it is a pointer-sized
 * integer. This works for both: arguments are passed in pointer-sized registers, and a function
 * that takes an int reads only the lower half. Threads: see each function of ranks.h; MPI itself
 * runs with MPI_THREAD_MULTIPLE, which the host checks.
 */
#ifndef MPG_DEVICE_RANKS_MPI_H
#define MPG_DEVICE_RANKS_MPI_H

#include "base/status.h"

typedef uintptr_t mpg_mpi_handle;

typedef struct mpg_mpi {
  int (*isend)(const void *buffer, int count, mpg_mpi_handle type, int to, int tag,
               mpg_mpi_handle communicator, mpg_mpi_handle *request);
  int (*irecv)(void *buffer, int count, mpg_mpi_handle type, int from, int tag,
               mpg_mpi_handle communicator, mpg_mpi_handle *request);
  int (*test)(mpg_mpi_handle *request, int *done, void *status);
  int (*cancel)(mpg_mpi_handle *request);
  int (*testany)(int count, void *requests, int *index, int *done, void *status);
  int (*iallreduce)(const void *source, void *target, int count, mpg_mpi_handle type,
                    mpg_mpi_handle operation, mpg_mpi_handle communicator, mpg_mpi_handle *request);
  int (*error_string)(int code, char *text, int *length);
  mpg_mpi_handle communicator, byte, sum;
  mpg_mpi_handle types[16]; /* indexed by mpg_dtype; 0 for a dtype that MPI cannot sum */
  void *in_place;           /* MPI_IN_PLACE */
  /* handle_size: size of an MPI handle in bytes, which is the stride of arrays of requests. */
  int largest_tag, handle_size;
  bool any_order; /* MPI may choose the order of additions */
} mpg_mpi;

/* buffer size in bytes; larger than any implementation's MPI_Status */
enum { MPG_MPI_STATUS = 256 };

/* Fills in the function pointers of *mpi from the library at `path`, which the host program has
 * already opened. */
mpg_status mpg_mpi_find(mpg_mpi *mpi, const char *path);
mpg_status mpg_mpi_fail(const mpg_mpi *mpi, int code, const char *function);
/* Cancels a receive. Returns false if this fails; MPI may then still write to the receive's
 * memory. */
bool mpg_mpi_cancel(const mpg_mpi *mpi, mpg_mpi_handle *request);
/* Returns MPG_OK if `code` is MPI_SUCCESS. Otherwise fails with MPI's error text. */
static inline mpg_status mpg_mpi_check(const mpg_mpi *mpi, int code, const char *function) {
  return code ? mpg_mpi_fail(mpi, code, function) : MPG_OK;
}

#endif
