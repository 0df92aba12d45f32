/* A folder of the test program's own, and files in it. */
#ifndef TESTS_UNIT_SUPPORT_FILES_H
#define TESTS_UNIT_SUPPORT_FILES_H

#include <stddef.h>

extern char dir[];                                                 /* made by make_dir */

int make_dir(void **state);                                        /* set-up and tear-down of a group */
int remove_dir(void **state);                                      /* fails when files are left in it */
void write_bytes(const char *name, const void *bytes, size_t length);
void write_text(const char *name, const char *text);
void remove_file(const char *name);                                /* that it is not there does not matter */

#endif
