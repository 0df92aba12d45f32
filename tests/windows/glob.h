/* POSIX's, see posix.h: a pattern in the last part of a path. */
#ifndef TESTS_WINDOWS_GLOB_H
#define TESTS_WINDOWS_GLOB_H

#include <stddef.h>

typedef struct { size_t gl_pathc; char **gl_pathv; } glob_t;

int glob(const char *pattern, int flags, int (*failed)(const char *, int), glob_t *found);
void globfree(glob_t *found);

#endif
