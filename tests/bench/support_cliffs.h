/* The cases of bench_cliffs, which measures them; tests plan them. */
#ifndef TESTS_BENCH_SUPPORT_CLIFFS_H
#define TESTS_BENCH_SUPPORT_CLIFFS_H

#include "mlxvk.h"

enum { CLIFF_PARAMS = 12, CLIFF_OPERANDS = 4 };
enum { CLIFF_DTYPE, CLIFF_OFFSET };                  /* every family's first numbers: index in dtypes, elements before an operand */

struct cliff_work { double bytes, operations; };
struct cliff_line;

/* One operation: what its numbers are called, how its operands are made, how it is called. */
struct cliff_family {
    const char *name, *params[CLIFF_PARAMS], *defaults;
    struct cliff_work (*prepare)(const int *p);
    int (*apply)(const int *p, mlxvk_array *y);      /* a result that is one of the operands is not in y */
    const struct cliff_line *lines;
};
extern const struct cliff_family cliff_families[];
extern const int cliff_family_count;

/* What cases are made with: where their operands go, and who makes them. gpu: of the sizes for GPUs. */
extern struct cliffs {
    bool gpu;
    mlxvk_stream stream;
    mlxvk_array *x;
    /* random elements, of which so many follow an offset; random positions below n; zeros */
    mlxvk_array (*strided)(mlxvk_dtype dtype, int offset, const int *shape, const int64_t *strides, size_t ndim,
                           int64_t elements);
    mlxvk_array (*positions)(int count, int n);
    mlxvk_array (*zeros)(mlxvk_dtype dtype, int rows, int columns);
} cliffs;

/* Called for each case of a family's lines (a number of it, the same for the same case), and for two neighbours. */
struct cliff_walker {
    int (*sample)(const struct cliff_family *f, const int *p);
    void (*neighbours)(int a, int b);
};
void cliff_follow(const struct cliff_family *f, const struct cliff_walker *by);

/* The numbers of a case, from words as in its lines. */
void cliff_set(const struct cliff_family *f, int *p, const char *words);
/* What differs from the defaults, as the lines say it. */
const char *cliff_text(const struct cliff_family *f, const int *p, char text[128]);
double cliff_element(int dtype);                     /* bytes of one, by index in dtypes */

#endif
