/* POSIX's, see ../posix.h: whole files, to be read. */
#ifndef TESTS_WINDOWS_MMAN_H
#define TESTS_WINDOWS_MMAN_H

#include <stddef.h>
#include <sys/types.h>

#define PROT_READ 1
#define MAP_PRIVATE 2
#define MAP_FAILED ((void *)-1)

void *mmap(void *address, size_t size, int protection, int flags, int fd, off_t offset);
int munmap(void *address, size_t size);

#endif
