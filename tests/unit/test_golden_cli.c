/* The golden runner as a program: what it does not know, and what it did not run, is no success. */
#define _POSIX_C_SOURCE 200809L
#include "support_files.h"

#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define DATA "tests/golden/data"

static char program[PATH_MAX];                                      /* golden, which lies one folder above this test */

static int find_program(void **state)
{
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 16);
    if (length < 0 || make_dir(state)) return -1;
    program[length] = 0;
    for (int i = 0; i < 2; i++) *strrchr(program, '/') = 0;
    strcat(program, "/golden");
    return access(program, X_OK);
}

/* Its exit status; the beginning of what it prints goes into `text`. */
static int run(const char *arguments, char *text, size_t size)
{
    char command[2 * PATH_MAX], rest[4096];
    snprintf(command, sizeof command, "'%s' %s 2>&1", program, arguments);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    text[fread(text, 1, size - 1, pipe)] = 0;
    while (fread(rest, 1, sizeof rest, pipe) > 0) {}
    int status = pclose(pipe);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* The closing line's numbers. */
static void closing(const char *text, int *passed, int *failed)
{
    const char *line = NULL;
    for (const char *at = text; at; at = strchr(at, '\n') ? strchr(at, '\n') + 1 : NULL) {
        if (sscanf(at, "%d passed, %d failed", passed, failed) == 2) line = at;
    }
    if (!line) fail_msg("no closing line:\n%s", text);
    assert_int_equal(sscanf(line, "%d passed, %d failed", passed, failed), 2);
}

/* A copy of a data file with the first `most` operations renamed to what no library has; returns their number. */
static int write_renamed(const char *source, const char *name, int most)
{
    static const char before[] = ",\\\"op\\\":\\\"";                   /* in a step of a view no comma is before it */
    static char bytes[1 << 20];
    int renamed = 0;
    FILE *file = fopen(source, "rb");
    assert_non_null(file);
    size_t size = fread(bytes, 1, sizeof bytes, file);
    assert_true(size > 0 && size < sizeof bytes);
    fclose(file);
    for (size_t i = 0; i + sizeof before < size && renamed < most; i++) {
        if (memcmp(bytes + i, before, sizeof before - 1)) continue;
        bytes[i + sizeof before - 1] = '?';
        renamed++;
    }
    write_bytes(name, bytes, size);
    return renamed;
}

static void test_unknown_operations(void **state)
{
    static char text[1 << 16];
    char arguments[PATH_MAX];
    int passed, failed, good;
    (void)state;
    assert_int_equal(run(DATA "/ternary.safetensors", text, sizeof text), 0);
    closing(text, &good, &failed);
    assert_true(good > 10 && failed == 0);
    snprintf(arguments, sizeof arguments, "%s/renamed.safetensors", dir);
    for (int all = 0; all < 2; all++) {
        int renamed = write_renamed(DATA "/ternary.safetensors", "renamed.safetensors", all ? INT_MAX : 1);
        assert_int_equal(renamed, all ? good : 1);
        assert_int_equal(run(arguments, text, sizeof text), 1);
        closing(text, &passed, &failed);
        assert_int_equal(passed, good - renamed);
        assert_int_equal(failed, renamed);
        assert_non_null(strstr(text, "the runner knows no operation ?"));
        remove_file("renamed.safetensors");
    }
}

static void test_nothing_ran(void **state)
{
    static const char *const arguments[] = {
        DATA "/ternary.safetensors --filter no_such_case", DATA "/ternary.safetensors --ops no_such_operation",
        DATA " no_such_file", DATA " ternary no_such_file --ops where", "no_such_folder",
        "--fuzz 0.01 --seed 1 --ops no_such_operation",
    };
    static char text[1 << 16];
    (void)state;
    for (size_t i = 0; i < sizeof arguments / sizeof *arguments; i++)
        if (run(arguments[i], text, sizeof text) != 1) fail_msg("golden %s succeeded:\n%s", arguments[i], text);
}

static void test_named_files(void **state)
{
    static char text[1 << 16];
    int passed, failed;
    (void)state;
    assert_int_equal(run(DATA " ternary creation.safetensors --sample 1/5", text, sizeof text), 0);
    closing(text, &passed, &failed);
    assert_true(passed > 2 && failed == 0);
    assert_non_null(strstr(text, "ternary.safetensors "));
    assert_non_null(strstr(text, "creation.safetensors "));
    assert_null(strstr(text, "unary.safetensors "));
}

/* A part and all but that are all. */
static void test_parts(void **state)
{
    static const char *const options[] = { "", "--sample 2/3", "--but 2/3" };
    static char text[1 << 16];
    int passed[3], failed;
    (void)state;
    for (int i = 0; i < 3; i++) {
        char arguments[64];
        snprintf(arguments, sizeof arguments, DATA " ternary %s", options[i]);
        assert_int_equal(run(arguments, text, sizeof text), 0);
        closing(text, &passed[i], &failed);
        assert_true(passed[i] > 0 && failed == 0);
    }
    assert_int_equal(passed[0], passed[1] + passed[2]);
    assert_int_equal(run(DATA " ternary --but 0/3", text, sizeof text), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unknown_operations), cmocka_unit_test(test_nothing_ran),
        cmocka_unit_test(test_named_files), cmocka_unit_test(test_parts),
    };
    return cmocka_run_group_tests_name("golden_cli", tests, find_program, remove_dir);
}
