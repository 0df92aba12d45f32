/* What the tests and tests/qwen3 use of POSIX and mingw-w64 has not got. Included before everything else (gcc -include)
 * by make test-windows; the headers beside it (dlfcn.h, glob.h, sys/mman.h) are found by their names. The library needs
 * none of them. */
#ifndef TESTS_WINDOWS_POSIX_H
#define TESTS_WINDOWS_POSIX_H

#include <fcntl.h>
#include <sys/types.h>

#define __printf__ __gnu_printf__                                   /* formats are C99's, as those of printf itself */
#define O_CLOEXEC (O_BINARY | O_NOINHERIT)

int setenv(const char *name, const char *value, int overwrite);
int unsetenv(const char *name);
char *mkdtemp(char *path);                                          /* "/tmp/..." becomes "mlxvk-...", here */
unsigned alarm(unsigned seconds);                                   /* never rings: run-tests has a limit, too */
enum { _SC_NPROCESSORS_ONLN };
long sysconf(int name);

#endif
