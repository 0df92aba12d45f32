/* The golden runner: runs stored cases of MLX's operations through mlxvk and compares the results with MLX's own.
 *
 *   main.c      options, the loop over files and cases, the summary
 *   file.c      a safetensors file: mapped, its header checked, its cases
 *   tensor.c    tensors on the host, and views of them
 *   operands.c  operands of a case on the host and on the device
 *   ops.c       the table: name of an operation -> call
 *   compare.c   the rules of comparison
 *   run.c       one case: operands, call, comparison
 *   rows.c      the same call for single rows
 *   watch.c     cases that are called and not computed
 *   fuzz.c      random calls instead of cases; fitting.c: parameters for them that fit each other
 */
#ifndef TESTS_GOLDEN_H
#define TESTS_GOLDEN_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "mlxvk.h"

/* A problem in words, empty when there is none. */
struct problem { char text[1024]; };
#if defined(__GNUC__)
__attribute__((__format__(__printf__, 2, 3)))
#endif
bool complain(struct problem *problem, const char *format, ...);            /* always false; the first problem stays */

void *need(void *pointer);                                              /* ends the program when out of memory */

/* ---- tensor.c ---- */

/* Row-major elements on the host. `data` need not be aligned. */
struct tensor {
    mlxvk_dtype dtype;
    int ndim;
    int shape[MLXVK_MAX_NDIM];
    const unsigned char *data;
    unsigned char *owned;                                               /* to be freed, or NULL */
};

size_t tensor_size(const struct tensor *t);
size_t tensor_bytes(const struct tensor *t);
void tensor_free(struct tensor *t);
bool dtype_by_name(mlxvk_dtype *dtype, const char *name);               /* "float32" */
const char *dtype_text(mlxvk_dtype dtype);
/* Applies the steps [{"op": ..., "args": {...}}, ...] to `base`; *res owns its data. */
bool tensor_view(struct tensor *res, const struct tensor *base, const cJSON *steps, struct problem *problem);
/* "[2, 3]", into text. */
const char *shape_text(char *text, size_t size, const int *shape, int ndim);

/* ---- file.c ---- */

struct golden_file {
    void *map;
    size_t size;
    const unsigned char *data;
    size_t data_size;
    cJSON *header, *cases;
};

bool golden_open(struct golden_file *file, const char *path, struct problem *problem);
void golden_close(struct golden_file *file);
bool golden_tensor(struct tensor *res, const struct golden_file *file, const char *name, struct problem *problem);

/* ---- compare.c ---- */

/* How one result is to be compared, and what for. */
struct rule {
    const char *cmp;
    double rtol, atol;
    bool has_axis;                                                      /* else flattened */
    int axis, kth;
    const struct tensor *input;                                         /* argpartition: what was partitioned */
};

/* dtype, shape and, as the rule says, values of got against want. */
bool compare(const struct tensor *got, const struct tensor *want, const struct rule *rule, struct problem *problem);

/* ---- ops.c ---- */

enum { MAX_OPERANDS = 32, MAX_RESULTS = 16, MAX_INTS = 512 };

/* A call in the making: parameters by their names in mlx-c. */
struct call {
    const cJSON *args;
    struct named_array  { const char *name; mlxvk_array array; bool used; } arrays[MAX_OPERANDS];
    struct named_vector { const char *name; mlxvk_vector_array vector; } vectors[4];
    int array_count, vector_count;
    mlxvk_stream stream;
    mlxvk_array results[2];
    mlxvk_vector_array result_vector;
    int ints[MAX_INTS], ints_used;                                      /* where lists of integers live */
    int64_t longs[MAX_INTS];
    int longs_used;
    struct problem problem;                                             /* a parameter that the case does not have */
    void (*invent)(struct call *call, const char *name, char kind);     /* makes parameters up; see fuzz.c */
};

enum result_kind { ONE_RESULT, TWO_RESULTS, VECTOR_RESULT };

struct operation {
    const char *name;
    enum result_kind kind;
    int (*run)(struct call *call);
};

const struct operation *find_operation(const char *name);               /* NULL: no row */
size_t operation_count(void);
const struct operation *operation_at(size_t i);

/* ---- operands.c ---- */

struct operand {
    const char *parameter;
    struct tensor base, value;                                          /* as stored; after its view */
    const cJSON *view;
    mlxvk_array array;
};

struct operands {
    struct operand list[MAX_OPERANDS];
    int count;
    bool has_views;
};

bool operands_load(struct operands *o, const struct golden_file *file, const cJSON *in, struct problem *problem);
/* How the operands of a case are made. */
enum layout {
    AS_GIVEN,                                                           /* with the case's own views */
    CONTIGUOUS,                                                         /* row-major */
    SCATTERED,                                                          /* transposed, stepped, some reversed */
    LAYOUTS
};

/* Makes the arrays, through the library's view operations where they are views, and binds them. */
bool operands_bind(struct operands *o, struct call *call, const cJSON *in, enum layout layout, struct problem *problem);
void operands_release(struct operands *o, struct call *call);
void operands_free(struct operands *o);
/* Reads an array into a buffer that was filled with a pattern; *res owns its data. */
bool array_to_tensor(struct tensor *res, mlxvk_array array, mlxvk_stream stream, struct problem *problem);
/* "code (text): message", of the stream's last error. */
const char *error_text(char *text, size_t size, int code, mlxvk_stream stream);

/* ---- run.c ---- */

enum outcome { PASSED, FAILED, CORRECTED };                            /* the last: passed, with wrong data put right */

struct watch;
struct run_options {
    bool layouts[LAYOUTS];
    const struct watch *watch;                                          /* who looks at the calls, or NULL */
    bool rows;                                                          /* single rows have the bits of all */
};

enum outcome run_case(const struct golden_file *file, const cJSON *item, mlxvk_stream stream,
                      const struct run_options *options, struct problem *problem);

/* ---- rows.c ---- */

/* Behind a call that worked; true for an operation that has no rows. */
bool check_rows(const struct operation *operation, struct call *call, struct problem *problem);

/* ---- fuzz.c ---- */

struct fuzz_options {
    double seconds;                                                     /* 0: one call */
    uint64_t seed;
    int refused;                                                        /* percent of allocations that fail */
    bool verbose;
    bool (*wanted)(const void *user, const char *op);
    const void *user;
};

int fuzz(const struct fuzz_options *options, mlxvk_stream stream);      /* 0: nothing went wrong */

#endif
