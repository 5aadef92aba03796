// A library to preload. It stands in for jaccl and NCCL: it reads their variables, has the ranks meet at the coordinator, and then exchanges
// arrays over MLX's ring. If the file of the variable STAND_IN_FAULT exists, the rank in it removes it at its next exchange, and has the fault:
// "hang 1" blocks the stream of rank 1 for ever, "die 1" aborts it, "error 1" fails the call, "shape 1" returns an array of another shape.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct { void* context; } handle;

enum { MOST = 16, ADDRESS = 32, HUGE_SIZE = 1 << 28 };

static int own_rank = -1;

static void* real(const char* name) {
  void* found = dlsym(RTLD_NEXT, name);
  if (found == NULL) {
    fprintf(stderr, "stand-in: MLX has no %s\n", name);
    abort();
  }
  return found;
}

static void expect(bool holds, const char* what) {
  if (!holds) {
    fprintf(stderr, "stand-in: expected %s\n", what);
    abort();
  }
}

static const char* variable(const char* name) {
  const char* text = getenv(name);
  expect(text != NULL, name);
  return text;
}

static bool is_stand_in(const char* backend) { return !strcmp(backend, "jaccl") || !strcmp(backend, "nccl"); }

bool mlx_distributed_is_available(const char* backend) {
  return is_stand_in(backend) || ((bool (*)(const char*))real("mlx_distributed_is_available"))(backend);
}

static int count(const char* text, const char* word) {
  int found = 0;
  while ((text = strstr(text, word)) != NULL) found++, text += strlen(word);
  return found;
}

// Reads the devices of jaccl: a list of lists, null on the diagonal. Returns the number of ranks.
static int ranks_of_devices(void) {
  char text[4096] = {0};
  FILE* file = fopen(variable("MLX_IBV_DEVICES"), "r");
  expect(file != NULL && fread(text, 1, sizeof text - 1, file) > 0, "the devices in MLX_IBV_DEVICES");
  fclose(file);
  int ranks = count(text, "[") - 1;
  expect(count(text, "null") == ranks && count(text, "\"rdma_") == ranks * (ranks - 1), "a device for each other rank");
  return ranks;
}

static int listening(struct sockaddr_in* at) {
  socklen_t size = sizeof *at;
  int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  expect(!bind(listener, (struct sockaddr*)at, size) && !listen(listener, MOST), "a free address");
  getsockname(listener, (struct sockaddr*)at, &size);
  return listener;
}

// All ranks send their address for the ring to rank 0, which sends the list back.
static void meet(const char* ip, int port, int ranks, char list[MOST][ADDRESS]) {
  struct sockaddr_in at = {.sin_family = AF_INET}, own = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  at.sin_addr.s_addr = inet_addr(ip), at.sin_port = htons(port);
  close(listening(&own));
  snprintf(list[own_rank], ADDRESS, "127.0.0.1:%d", ntohs(own.sin_port));
  if (own_rank == 0) {
    int listener = listening(&at), peers[MOST];
    for (int i = 1; i < ranks; i++) {
      int peer = accept(listener, NULL, NULL), rank = 0;
      expect(recv(peer, &rank, sizeof rank, MSG_WAITALL) == sizeof rank && rank > 0 && rank < ranks, "a rank");
      expect(recv(peer, list[rank], ADDRESS, MSG_WAITALL) == ADDRESS, "an address");
      peers[i] = peer;
    }
    for (int i = 1; i < ranks; i++) send(peers[i], list, MOST * ADDRESS, 0), close(peers[i]);
    close(listener);
    return;
  }
  for (int tries = 0; tries < 600; tries++, usleep(50000)) {
    int peer = socket(AF_INET, SOCK_STREAM, 0);
    if (!connect(peer, (struct sockaddr*)&at, sizeof at)) {
      send(peer, &own_rank, sizeof own_rank, 0), send(peer, list[own_rank], ADDRESS, 0);
      expect(recv(peer, list, MOST * ADDRESS, MSG_WAITALL) == MOST * ADDRESS, "the addresses of all ranks");
      close(peer);
      return;
    }
    close(peer);
  }
  expect(false, "rank 0 at the coordinator");
}

int mlx_distributed_init(handle* group, bool strict, const char* backend) {
  int (*join)(handle*, bool, const char*) = real("mlx_distributed_init");
  if (!is_stand_in(backend)) return join(group, strict, backend);
  char ip[ADDRESS] = {0}, list[MOST][ADDRESS] = {{0}}, path[4096];
  int port = 0, ranks = 0;
  own_rank = atoi(variable("MLX_RANK"));
  if (!strcmp(backend, "jaccl")) {
    ranks = ranks_of_devices();
    expect(sscanf(variable("MLX_JACCL_COORDINATOR"), "%31[^:]:%d", ip, &port) == 2, "ADDRESS:PORT in MLX_JACCL_COORDINATOR");
  } else {
    ranks = atoi(variable("MLX_WORLD_SIZE")), port = atoi(variable("NCCL_PORT"));
    snprintf(ip, sizeof ip, "%s", variable("NCCL_HOST_IP"));
  }
  expect(ranks > 1 && ranks <= MOST && own_rank < ranks, "a rank below the number of ranks");
  meet(ip, port, ranks, list);
  snprintf(path, sizeof path, "%s-ring-XXXXXX", variable("STAND_IN_FAULT"));
  FILE* file = fdopen(mkstemp(path), "w");
  for (int i = 0; i < ranks; i++) fprintf(file, "%s[\"%s\"]%s", i ? "," : "[", list[i], i + 1 < ranks ? "" : "]");
  fclose(file);
  setenv("MLX_HOSTFILE", path, 1);
  int status = join(group, strict, "ring");
  unlink(path);
  return status;
}

// Returns the fault that this rank shall have now, or an empty text.
static const char* fault(void) {
  static char kind[16];
  const char* path = getenv("STAND_IN_FAULT");
  FILE* file = own_rank < 0 || path == NULL ? NULL : fopen(path, "r");
  int rank = -1;
  kind[0] = 0;
  if (file == NULL) return kind;
  bool is_read = fscanf(file, "%15s %d", kind, &rank) == 2;
  fclose(file);
  if (!is_read || rank != own_rank || unlink(path)) kind[0] = 0;
  return kind;
}

// Returns true if the exchange had a fault that replaces it. Its status is then in `status`, its array in `result`.
static bool fails(handle* result, const int* shape, size_t axes, int type, int peer, handle group, handle stream, int* status) {
  const char* kind = fault();
  *status = 0;
  if (!strcmp(kind, "die")) abort();
  if (!strcmp(kind, "error")) return *status = 1, true;
  if (!strcmp(kind, "hang")) {
    // The neighbor never sends so much.
    int huge[] = {HUGE_SIZE};
    handle array = ((handle(*)(void))real("mlx_array_new"))();
    ((int (*)(handle*, const int*, size_t, int, int, handle, handle))real("mlx_distributed_recv"))(&array, huge, 1, type, peer, group, stream);
    handle arrays = ((handle(*)(handle))real("mlx_vector_array_new_value"))(array);
    ((int (*)(handle))real("mlx_async_eval"))(arrays);
    return false;
  }
  if (strcmp(kind, "shape")) return false;
  int other[MOST];
  memcpy(other, shape, axes * sizeof *shape);
  other[axes - 1]++;
  handle value = ((handle(*)(float))real("mlx_array_new_float"))(1.0f);
  *status = ((int (*)(handle*, const int*, size_t, handle, int, handle))real("mlx_full"))(result, other, axes, value, type, stream);
  return true;
}

static bool array_fails(handle* result, handle array, int peer, handle group, handle stream, int* status) {
  const int* shape = ((const int* (*)(handle))real("mlx_array_shape"))(array);
  size_t axes = ((size_t(*)(handle))real("mlx_array_ndim"))(array);
  int type = ((int (*)(handle))real("mlx_array_dtype"))(array);
  return fails(result, shape, axes, type, peer, group, stream, status);
}

static int neighbor(handle group) { return (own_rank + 1) % ((int (*)(handle))real("mlx_distributed_group_size"))(group); }

int mlx_distributed_all_sum(handle* result, handle array, handle group, handle stream) {
  int status;
  if (array_fails(result, array, neighbor(group), group, stream, &status)) return status;
  return ((int (*)(handle*, handle, handle, handle))real("mlx_distributed_all_sum"))(result, array, group, stream);
}

int mlx_distributed_send(handle* result, handle array, int to, handle group, handle stream) {
  int status;
  if (array_fails(result, array, to, group, stream, &status)) return status;
  return ((int (*)(handle*, handle, int, handle, handle))real("mlx_distributed_send"))(result, array, to, group, stream);
}

int mlx_distributed_recv(handle* result, const int* shape, size_t axes, int type, int from, handle group, handle stream) {
  int status;
  if (fails(result, shape, axes, type, from, group, stream, &status)) return status;
  return ((int (*)(handle*, const int*, size_t, int, int, handle, handle))real("mlx_distributed_recv"))(result, shape, axes, type, from, group, stream);
}
