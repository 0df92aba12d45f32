/* What random calls are made of. fuzz.c makes up each parameter by its name; before it does, fitting.c makes those of
 * operations whose parameters depend on each other, so that most of their calls are right. */
#ifndef TESTS_GOLDEN_FUZZ_H
#define TESTS_GOLDEN_FUZZ_H

#include "golden.h"

enum { LARGEST = 7, MOST_DIMS = 6 };

struct making {
    uint64_t state;                                        /* of the random numbers: a call's seed makes all of it */
    const char *op;
    cJSON *args;
    int shape[MOST_DIMS], ndim;                            /* what the arrays of this call look like */
    mlxvk_dtype dtype;
    mlxvk_stream stream, second;                           /* the second one's arrays are operands too, at times */
    bool verbose;
    mlxvk_device other;                                    /* another device: its arrays must be refused */
    bool foreign, again;                                   /* one of those is an operand; the call is made once more */
    const uint8_t *bytes;                                  /* while there are some, random numbers come from these */
    size_t byte_count;
    void *replaced;                                        /* the handle of the operand whose place the result takes, or NULL */
};
extern struct making now;

int below(int n);
int between(int low, int high);
bool chance(int percent);
mlxvk_dtype random_dtype(void);

/* The call that these bytes make, as libFuzzer makes them up; false, with a line, where something is wrong. */
bool fuzz_bytes(const uint8_t *bytes, size_t count, mlxvk_stream stream);
/* Random elements as `name` wants them, in some layout. */
mlxvk_array shaped_array(const char *name, mlxvk_dtype dtype, const int *shape, int ndim);
/* Parameters of the call that fit each other; none for operations that need no help. */
void fit(struct call *c, const char *op);

#endif
