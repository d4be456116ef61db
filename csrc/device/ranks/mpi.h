/* The required functions of the MPI library that the host has opened, resolved at run time. The
 * build does not need MPI.
 *
 * Implementations define a handle as an int or a pointer. Both are passed in a pointer-sized
 * register, of which a callee that takes an int reads the lower half. So handles are pointer-sized
 * integers here, and requests are written into them. Threads: see each function of ranks.h; MPI
 * itself runs with MPI_THREAD_MULTIPLE, which the host checks.
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
  mpg_mpi_handle types[16]; /* by dtype number; 0 for a dtype that MPI does not sum */
  void *in_place;           /* MPI_IN_PLACE */
  /* handle_size: bytes of a request in an array, an int or a pointer. */
  int largest_tag, handle_size;
  bool any_order; /* MPI may sum in its own order */
} mpg_mpi;

enum { MPG_MPI_STATUS = 256 }; /* bytes; larger than MPI_Status of any implementation */

/* Finds the functions in the library at that path, which is already open, and their data. */
mpg_status mpg_mpi_find(mpg_mpi *mpi, const char *path);
mpg_status mpg_mpi_fail(const mpg_mpi *mpi, int code, const char *function);
/* Cancels a receive. Returns false if MPI has begun it and still writes to its memory. */
bool mpg_mpi_cancel(const mpg_mpi *mpi, mpg_mpi_handle *request);
/* Returns MPG_OK if the code is MPI's success; otherwise fails with MPI's error text. */
static inline mpg_status mpg_mpi_check(const mpg_mpi *mpi, int code, const char *function) {
  return code ? mpg_mpi_fail(mpi, code, function) : MPG_OK;
}

#endif
