/* Programs that are made at random, run twice, compared, and shortened where the results differ; see fuzz_programs.c.
 *
 *   support_program.c   statements: their parts, and how they are printed
 *   support_run.c       the two ways to run one, and the comparison
 *   support_make.c      statements, views and operands of a program in the making
 *   support_random.c    random operations
 *   support_motifs.c    groups of operations that the library fuses, with something in between
 *   support_shrink.c    the few lines that still fail */
#ifndef TESTS_FUZZ_SUPPORT_PROGRAM_H
#define TESTS_FUZZ_SUPPORT_PROGRAM_H

#include "golden/fuzz.h"

/* ==== >>statements: support_program.c ============================================================================= */

enum { MOST_STATEMENTS = 120, MOST_VARIABLES = 120, MOST_INPUTS = 8, NONE = -1 };

enum kind {
    DATA,                                                  /* x1 = new data */
    CALL,                                                  /* x1 = operation(...) */
    ALIAS,                                                 /* x1 = one more handle on x0 */
    FREE, READ, EVAL, ASYNC,                               /* of one variable; EVAL and ASYNC of NONE: of all */
    SUBMIT, WAIT                                           /* mlxvk_finalize and mlxvk_synchronize of a stream */
};

enum values { UNIFORM, SMALL, POSITIVE, WHOLE, INDEX, DISTINCT, BITS, VALUES };

struct data {
    mlxvk_dtype dtype;
    int ndim, shape[MOST_DIMS];
    enum values values;
    int limit;                                             /* of INDEX and DISTINCT: below it */
    uint32_t seed;
};

struct input {
    const char *name;                                      /* of the parameter in mlx-c */
    int variable;                                          /* NONE: { NULL } */
    bool listed;                                           /* one of several in a vector */
};

struct statement {
    enum kind kind;
    int variable;                                          /* that it sets, frees, reads, ... */
    int stream;                                            /* 0 or 1 */
    const struct operation *op;
    cJSON *args;                                           /* the parameters that are no arrays */
    struct input in[MOST_INPUTS];
    int inputs;
    struct data data;
};

struct program {
    uint64_t seed;
    int setting;                                           /* of the table of settings */
    bool straight;                                         /* the reference's operands are row-major copies */
    int count;
    struct statement statement[MOST_STATEMENTS];
};

struct statement call_of(const char *op);                  /* ends the program where the table has no such operation */
void with_input(struct statement *s, const char *name, int variable);
void with_listed(struct statement *s, const char *name, int variable);
void with_number(struct statement *s, const char *name, double value);
void with_truth(struct statement *s, const char *name, bool value);
void with_text(struct statement *s, const char *name, const char *value);
void with_null(struct statement *s, const char *name);
void with_ints(struct statement *s, const char *name, const int *values, int count);
void statement_free(struct statement *s);
void program_copy(struct program *to, const struct program *from);
void program_free(struct program *p);
void program_delete(struct program *p, int at);
struct tensor data_tensor(const struct data *d);
void program_print(const struct program *p);

/* ==== >>running: support_run.c ==================================================================================== */

/* A device on which programs are run lazily. */
struct setting {
    const char *gates;
    bool same_kernels;                                     /* as the reference where nothing is fused */
    bool limits;                                           /* a call may be refused with LIMIT */
};
extern const struct setting settings[];
enum { SETTINGS = 6 };

/* What a statement gave. */
struct value {
    bool there;
    bool exact;                                            /* without rounding: every kernel gives these numbers */
    struct tensor tensor;
};

/* A program run operation by operation. */
struct reference {
    struct value value[MOST_STATEMENTS];
    int latest[MOST_VARIABLES];                            /* the statement that set the variable, or NONE */
    mlxvk_array handle[MOST_VARIABLES];
    bool straight, noisy;
    uint64_t noise;                                        /* the state of its random numbers */
};

bool running_open(struct problem *problem);
bool running_refresh(struct problem *problem);              /* between programs */
void running_close(void);

void reference_begin(struct reference *r, bool straight);
/* Runs statement `at`; false where it cannot be run, or gives what cannot be compared: it is as if it were not there
 * then. */
bool reference_step(struct reference *r, const struct program *p, int at);
void reference_end(struct reference *r);

/* Whether the program, run lazily, gives what the reference gave; else the problem says how it failed. */
bool program_agrees(const struct program *p, const struct reference *r, struct problem *problem);
/* Both runs; true also where nothing of the program can be run. */
bool program_passes(const struct program *p, struct problem *problem);
/* The gates that make the program pass when they are off, in words. */
void suspects(const struct program *p, char *text, size_t size);

/* ==== >>making: support_make.c, support_motifs.c ================================================================== */

/* The program in the making, and its reference, which says what there is. */
extern struct program *making;
extern struct reference *made;

void program_make(struct program *p, struct reference *r, uint64_t seed);

int emit(struct statement s);                              /* the variable that it sets; NONE: it cannot be run */
int emit_in_place(struct statement s, int variable);       /* the result takes the variable's place */
void note(enum kind kind, int variable);                   /* FREE, READ, EVAL, ... */
const struct tensor *of(int variable);                     /* its value; a scalar where it is gone */
bool is_there(int variable);
mlxvk_dtype float_dtype(void);
int favourite(int count);                                  /* a choice of so many */
bool is_favourite(int number);

int fresh(mlxvk_dtype dtype, const int *shape, int ndim, enum values values, int limit);
int shaped(mlxvk_dtype dtype, const int *shape, int ndim);         /* made, or found, or a view of something */
int any_variable(bool floating);                                   /* NONE where there is none */
int simple(const char *op, int a);                                 /* op(a) */
int pair(const char *op, int a, int b);                            /* op(a, b) */
int view_of(int variable);                                         /* any view, of any shape */
int same_shape_view(int variable);                                 /* another view of the memory, of the same shape */
int reshaped(int variable, const int *shape, int ndim);
int transposed(int variable, const int *axes);
int broadcast(int variable, const int *shape, int ndim);

/* Where a slice lies in an array. */
struct region { int start[MOST_DIMS], stop[MOST_DIMS], step[MOST_DIMS], shape[MOST_DIMS], ndim; };
void lay_axis(struct region *g, int axis, int first, int n, int step);      /* n places from `first` on */
struct region random_region(const int *shape, int ndim);
/* A region of the given shape in such an array, if it is large enough. */
bool region_for(struct region *g, const int *shape, int ndim, const int *wanted);
int slice_of(int variable, const struct region *g);
int update(const char *op, int variable, int with, const struct region *g, bool in_place);

struct weight { mlxvk_dtype dtype; int rows, columns, bits, group, w, scales, biases; };
struct weight quantized_weight(mlxvk_dtype dtype, int rows, int columns);
int product(int x, const struct weight *w);

int any(bool floating);                                    /* some variable, or new data */
mlxvk_dtype any_float(void);
mlxvk_dtype any_dtype(void);
int random_size(void);
int random_shape(int *shape);
int random_product(int x);                                 /* quantized_matmul with a weight that fits, or NONE */
int normed(int x);                                         /* fast_rms_norm */
int roped(int x, int dims);

void random_operation(void);
void random_motif(void);

/* ==== >>shrinking: support_shrink.c =============================================================================== */

/* Makes a failing program as short and as plain as it stays failing. */
void program_shrink(struct program *p, struct problem *problem);

#endif
