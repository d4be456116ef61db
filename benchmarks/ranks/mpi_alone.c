/* Transfers with the MPI library alone, for transfers.py. mpicc compiles this file into a shared
 * library that the ranks' processes open. Each function returns seconds. */
#include <mpi.h>
#include <string.h>

double mpi_all_reduce(float *array, float *sum, int count, int in_place) {
  MPI_Barrier(MPI_COMM_WORLD);
  double begin = MPI_Wtime();
  MPI_Allreduce(in_place ? MPI_IN_PLACE : (void *)array, sum, count, MPI_FLOAT, MPI_SUM,
                MPI_COMM_WORLD);
  return MPI_Wtime() - begin;
}

/* Returns the one-way time of messages that travel back and forth between ranks 0 and 1. */
double mpi_ping_pong(int bytes, int rounds) {
  static char buffer[1 << 20];
  int rank;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Barrier(MPI_COMM_WORLD);
  double begin = MPI_Wtime();
  for (int i = 0; i < rounds && rank < 2; i++) {
    if (rank == 0) MPI_Send(buffer, bytes, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
    MPI_Recv(buffer, bytes, MPI_BYTE, 1 - rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (rank == 1) MPI_Send(buffer, bytes, MPI_BYTE, 0, 0, MPI_COMM_WORLD);
  }
  return (MPI_Wtime() - begin) / rounds / 2;
}
