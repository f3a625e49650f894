// Reads of a file NAME in a folder wait as long as there is a file NAME among the gates, and say so there.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void wait_for_gate(int fd) {
  const char *folder = getenv("SLOW_FOLDER"), *gates = getenv("SLOW_GATES");
  char link[64], path[4096], gate[8192], waiting[8192];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t size = readlink(link, path, sizeof path - 1);
  if (size < 0 || !folder || !gates) return;
  path[size] = 0;
  if (strncmp(path, folder, strlen(folder))) return;
  snprintf(gate, sizeof gate, "%s%s", gates, strrchr(path, '/'));
  snprintf(waiting, sizeof waiting, "%s.waiting", gate);
  while (!access(gate, F_OK)) {
    close(open(waiting, O_CREAT | O_WRONLY, 0600));
    usleep(5000);
  }
}

ssize_t read(int fd, void *data, size_t size) {
  wait_for_gate(fd);
  return ((ssize_t (*)(int, void *, size_t))dlsym(RTLD_NEXT, "read"))(fd, data, size);
}

ssize_t pread(int fd, void *data, size_t size, off_t start) {
  wait_for_gate(fd);
  return ((ssize_t (*)(int, void *, size_t, off_t))dlsym(RTLD_NEXT, "pread"))(fd, data, size, start);
}

ssize_t pread64(int fd, void *data, size_t size, off64_t start) {
  wait_for_gate(fd);
  return ((ssize_t (*)(int, void *, size_t, off64_t))dlsym(RTLD_NEXT, "pread64"))(fd, data, size, start);
}
