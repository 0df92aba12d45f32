/* The cases of a data file for somebody who looks at their calls instead of computing them (tests/unit/test_plans.c).
 * Nothing of golden.h is needed, whose names are not everybody's. */
#ifndef TESTS_GOLDEN_WATCH_H
#define TESTS_GOLDEN_WATCH_H

#include <stdbool.h>
#include "mlxvk.h"

struct watch {
    void *user;
    mlxvk_stream stream;                                                /* of the default device, as the operands are */
    void (*begin)(void *user, const char *name, const char *op);
    /* A call of the case succeeded, with these results; each is made with its operands in several layouts. */
    bool (*called)(void *user, const mlxvk_array *results, int count);
    /* What is wrong with a case: its call failed, did not fail where it must, or `called` returned false. */
    void (*failed)(void *user, const char *text);
};

/* How many cases there are. */
int golden_watch(const char *path, const struct watch *watch);

#endif
