#define _POSIX_C_SOURCE 200809L
#include "support_files.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

char dir[] = "/tmp/mlxvk-test-XXXXXX";

int make_dir(void **state)
{
    (void)state;
    return mkdtemp(dir) ? 0 : -1;
}

int remove_dir(void **state)
{
    (void)state;
    return rmdir(dir);
}

static const char *path_of(const char *name)
{
    static char path[4096];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

void write_bytes(const char *name, const void *bytes, size_t length)
{
    FILE *file = fopen(path_of(name), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, length, file), length);
    assert_int_equal(fclose(file), 0);
}

void write_text(const char *name, const char *text) { write_bytes(name, text, strlen(text)); }

void remove_file(const char *name) { unlink(path_of(name)); }
