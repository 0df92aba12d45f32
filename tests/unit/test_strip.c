/* tests/tools/strip.c on modules that are written out here: what goes, what takes its place, what stays. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#define main strip_main
#include "tools/strip.c"
#undef main
#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

enum { OP_EXT_INST = 12, OP_INT = 21, OP_BOOL = 20, OP_VOID = 19, OP_FUNCTION_TYPE = 33, OP_TRUE = 41, OP_CONSTANT = 43,
       OP_CHAIN = 65, OP_EXTRACT = 81, OP_ADD = 128, OP_MERGE = 247, OP_IF = 250 };
enum { COMPUTE = 5, MAIN_TEXT = 0x6e69616d, BUFFER_CLASS = 12, VOLATILE = 1, NO_CONTRACTION = 42 };

/* Ids: what every module declares, labels, and those that each test uses as it likes. */
enum { VOID = 1, UINT, BOOL, POINTER, INPUT_POINTER, BUFFER_POINTER, FUNCTION_TYPE, TRUE, ONE, TWO, IN, BUFFER, MAIN,
       START, HEAD, LEFT, RIGHT, BODY, NEXT, JOIN, A = 40, B, C, X, Y, Z, W, ONCE, GIVEN, FIRST, SECOND, LAST, LIMIT };

/* An instruction: its opcode and its other words. */
#define I(op, ...) (uint32_t)(COUNT(((uint32_t[]){ __VA_ARGS__ })) + 1) << 16 | (op), __VA_ARGS__
#define VARIABLE(id) I(OP_VARIABLE, POINTER, id, CLASS_FUNCTION)
#define LOAD(id, from) I(OP_LOAD, UINT, id, from)
#define STORE(to, id) I(OP_STORE, to, id)
#define ADD(id, a, b) I(OP_ADD, UINT, id, a, b)
#define LABEL(id) I(OP_LABEL, id)
#define GO(label) I(OP_BRANCH, label)
#define IF(yes, no) I(OP_IF, TRUE, yes, no)
#define MERGE(label) I(OP_MERGE, label, 0)
#define RETURN 1u << 16 | OP_RETURN, 1u << 16 | OP_FUNCTION_END

#define CALL(id, ...) I(OP_CALL, UINT, id, ONCE, __VA_ARGS__)
#define FUNCTION I(OP_FUNCTION, UINT, ONCE, 0, FUNCTION_TYPE), I(OP_PARAMETER, POINTER, GIVEN), LABEL(FIRST)
#define GIVE(id) I(OP_RETURN_VALUE, id), 1u << 16 | OP_FUNCTION_END

#define ENTRY MAGIC, 0x10500, 0, LIMIT, 0, I(OP_ENTRY_POINT, COMPUTE, MAIN, MAIN_TEXT, 0, IN, BUFFER)
#define DECLARATIONS \
    I(OP_VOID, VOID), I(OP_INT, UINT, 32, 0), I(OP_BOOL, BOOL), I(OP_TYPE_POINTER, POINTER, CLASS_FUNCTION, UINT), \
    I(OP_TYPE_POINTER, INPUT_POINTER, CLASS_INPUT, UINT), I(OP_TYPE_POINTER, BUFFER_POINTER, BUFFER_CLASS, UINT), \
    I(OP_FUNCTION_TYPE, FUNCTION_TYPE, VOID), I(OP_TRUE, BOOL, TRUE), I(OP_CONSTANT, UINT, ONE, A), \
    I(OP_CONSTANT, UINT, TWO, X), I(OP_VARIABLE, INPUT_POINTER, IN, CLASS_INPUT), \
    I(OP_VARIABLE, BUFFER_POINTER, BUFFER, BUFFER_CLASS), I(OP_FUNCTION, VOID, MAIN, 0, FUNCTION_TYPE)

static bool has(const uint32_t *what, size_t n)
{
    for (uint32_t at = HEADER; at < count; at += length_at(at))
        if (length_at(at) == n && !memcmp(words + at, what, n * sizeof *what)) return true;
    return false;
}

static bool together, lean = true;                     /* the options */

static void strip_copy(const uint32_t *module, size_t n)
{
    words = malloc(n * sizeof *words);
    assert_non_null(words);
    memcpy(words, module, n * sizeof *words);
    count = (uint32_t)n;
    strip(together, lean);
}

/* Puts a body into a function, strips the module and compares what is left of the body. */
static void expect(const uint32_t *body, size_t n, const uint32_t *want, size_t left)
{
    const uint32_t before[] = { ENTRY, DECLARATIONS, LABEL(START) }, label[] = { LABEL(START) };
    uint32_t module[500], at = HEADER;
    assert_true(COUNT(before) + n <= COUNT(module));
    memcpy(module, before, sizeof before);
    memcpy(module + COUNT(before), body, n * sizeof *body);
    strip_copy(module, COUNT(before) + n);
    while (at < count && memcmp(words + at, label, sizeof label)) at += length_at(at);
    assert_true(at < count);
    at += COUNT(label);
    assert_int_equal(count - at, left);
    assert_memory_equal(words + at, want, left * sizeof *want);
    free(words);
}

#define EXPECT(body, want) expect(body, COUNT(body), want, COUNT(want))
#define EXPECT_ALL(body) EXPECT(body, body)

/* Also where what was stored comes from another such variable. */
static void test_stored_once(void **state)
{
    const uint32_t body[] = { VARIABLE(A), VARIABLE(B), LOAD(X, IN), STORE(A, X), LOAD(Y, A), STORE(B, Y), LOAD(Z, B),
                              LOAD(W, B), ADD(C, Z, W), STORE(BUFFER, C), RETURN };
    const uint32_t want[] = { LOAD(X, IN), ADD(C, X, X), STORE(BUFFER, C), RETURN };
    (void)state;
    EXPECT(body, want);
}

static void test_stored_before_branches(void **state)
{
    const uint32_t body[] = { VARIABLE(A), STORE(A, ONE), MERGE(JOIN), IF(LEFT, RIGHT), LABEL(LEFT), LOAD(X, A),
                              GO(JOIN), LABEL(RIGHT), LOAD(Y, A), GO(JOIN), LABEL(JOIN),
                              I(OP_PHI, UINT, Z, X, LEFT, Y, RIGHT), LOAD(W, A), STORE(BUFFER, Z), STORE(BUFFER, W),
                              RETURN };
    const uint32_t want[] = { MERGE(JOIN), IF(LEFT, RIGHT), LABEL(LEFT), GO(JOIN), LABEL(RIGHT), GO(JOIN), LABEL(JOIN),
                              I(OP_PHI, UINT, Z, ONE, LEFT, ONE, RIGHT), STORE(BUFFER, Z), STORE(BUFFER, ONE), RETURN };
    const uint32_t in_case[] = { VARIABLE(A), STORE(A, ONE), MERGE(JOIN), I(OP_SWITCH, ONE, JOIN, 7, LEFT), LABEL(LEFT),
                                 LOAD(X, A), STORE(BUFFER, X), GO(JOIN), LABEL(JOIN), RETURN };
    const uint32_t case_left[] = { MERGE(JOIN), I(OP_SWITCH, ONE, JOIN, 7, LEFT), LABEL(LEFT), STORE(BUFFER, ONE),
                                   GO(JOIN), LABEL(JOIN), RETURN };
    (void)state;
    EXPECT(body, want);
    EXPECT(in_case, case_left);
}

static void test_stored_in_a_branch(void **state)
{
    const uint32_t behind[] = { VARIABLE(A), MERGE(JOIN), IF(LEFT, JOIN), LABEL(LEFT), STORE(A, ONE), LOAD(X, A),
                                STORE(BUFFER, X), GO(JOIN), LABEL(JOIN), LOAD(Y, A), STORE(BUFFER, Y), RETURN };
    const uint32_t beside[] = { VARIABLE(A), MERGE(JOIN), IF(LEFT, RIGHT), LABEL(LEFT), STORE(A, ONE), GO(JOIN),
                                LABEL(RIGHT), LOAD(Y, A), STORE(BUFFER, Y), GO(JOIN), LABEL(JOIN), RETURN };
    const uint32_t by_switch[] = { VARIABLE(A), MERGE(JOIN), I(OP_SWITCH, ONE, JOIN, 7, LEFT, 8, RIGHT), LABEL(LEFT),
                                   STORE(A, ONE), GO(RIGHT), LABEL(RIGHT), LOAD(Y, A), STORE(BUFFER, Y), GO(JOIN),
                                   LABEL(JOIN), RETURN };
    (void)state;
    EXPECT_ALL(behind);
    EXPECT_ALL(beside);
    EXPECT_ALL(by_switch);
}

/* A loop's head is reached without its body once; later parts of the body are not. */
static void test_loops(void **state)
{
#define TEST I(OP_LOOP_MERGE, JOIN, NEXT, 0), IF(BODY, JOIN), LABEL(BODY)
#define AGAIN GO(NEXT), LABEL(NEXT), GO(HEAD), LABEL(JOIN), RETURN
    const uint32_t carried[] = { VARIABLE(A), GO(HEAD), LABEL(HEAD), LOAD(X, A), STORE(BUFFER, X), TEST, STORE(A, ONE),
                                 AGAIN };
    const uint32_t within[] = { VARIABLE(A), GO(HEAD), LABEL(HEAD), LOAD(X, A), STORE(A, ONE), STORE(BUFFER, X), TEST,
                                AGAIN };
    const uint32_t passed[] = { VARIABLE(A), GO(HEAD), LABEL(HEAD), LOAD(Y, IN), STORE(A, Y), TEST, LOAD(X, A),
                                STORE(BUFFER, X), AGAIN };
    const uint32_t want[] = { GO(HEAD), LABEL(HEAD), LOAD(Y, IN), TEST, STORE(BUFFER, Y), AGAIN };
    (void)state;
    EXPECT_ALL(carried);
    EXPECT_ALL(within);
    EXPECT(passed, want);
}

/* Where nothing leads, everything is on every way: such a block could store what it loads. */
static void test_unreached(void **state)
{
    const uint32_t body[] = { VARIABLE(A), GO(JOIN), LABEL(LEFT), STORE(A, X), GO(RIGHT), LABEL(RIGHT), LOAD(X, A),
                              STORE(BUFFER, X), GO(LEFT), LABEL(JOIN), RETURN };
    (void)state;
    EXPECT_ALL(body);
}

static void test_more_is_done(void **state)
{
    const uint32_t twice[] = { VARIABLE(A), STORE(A, ONE), LOAD(X, A), STORE(BUFFER, X), STORE(A, TWO), LOAD(Y, A),
                               STORE(BUFFER, Y), RETURN };
    const uint32_t again[] = { VARIABLE(A), GO(HEAD), LABEL(LEFT), STORE(A, TWO), GO(RIGHT), LABEL(HEAD), STORE(A, ONE),
                               GO(LEFT), LABEL(RIGHT), LOAD(X, A), STORE(BUFFER, X), RETURN };
    const uint32_t passed[] = { VARIABLE(A), STORE(A, ONE), I(OP_CALL, VOID, X, MAIN, A), LOAD(Y, A), STORE(BUFFER, Y),
                                RETURN };
    const uint32_t in_parts[] = { VARIABLE(A), STORE(A, ONE), I(OP_CHAIN, POINTER, X, A, ONE), STORE(X, TWO),
                                  LOAD(Y, A), STORE(BUFFER, Y), RETURN };
    const uint32_t begun[] = { I(OP_VARIABLE, POINTER, A, CLASS_FUNCTION, ONE), LOAD(X, A), STORE(BUFFER, X), RETURN };
    const uint32_t not_plain[] = { VARIABLE(A), STORE(A, ONE), I(OP_LOAD, UINT, X, A, VOLATILE), STORE(BUFFER, X),
                                   RETURN };
    (void)state;
    EXPECT_ALL(twice);
    EXPECT_ALL(again);
    EXPECT_ALL(passed);
    EXPECT_ALL(in_parts);
    EXPECT_ALL(begun);
    EXPECT_ALL(not_plain);
}

/* What buffers and calls do is seen elsewhere; the rest goes, and what only it needed. */
static void test_unused(void **state)
{
    const uint32_t body[] = { VARIABLE(A), VARIABLE(B), LOAD(X, IN), ADD(Y, X, X), STORE(A, Y), STORE(A, ONE),
                              LOAD(Z, BUFFER), ADD(W, Z, TWO), I(OP_CALL, VOID, C, MAIN), RETURN };
    const uint32_t want[] = { LOAD(Z, BUFFER), I(OP_CALL, VOID, C, MAIN), RETURN };
    (void)state;
    EXPECT(body, want);
}

static int inline_alone(void **state)
{
    (void)state;
    together = true;
    lean = false;
    return 0;
}

static int lean_alone(void **state)
{
    (void)state;
    together = false;
    lean = true;
    return 0;
}

/* A function that is called once takes the call's place: with an argument, a variable of its own, a result; with blocks, from whose
 * last one the rest of the call's block is reached then. */
static void test_called_once(void **state)
{
    const uint32_t simple[] = { VARIABLE(A), STORE(A, ONE), CALL(X, A), STORE(BUFFER, X), RETURN,
                                FUNCTION, VARIABLE(B), LOAD(Y, GIVEN), STORE(B, Y), ADD(Z, Y, TWO), GIVE(Z) };
    const uint32_t simple_left[] = { VARIABLE(B), VARIABLE(A), STORE(A, ONE), LOAD(Y, A), STORE(B, Y), ADD(Z, Y, TWO),
                                     STORE(BUFFER, Z), RETURN };
    const uint32_t blocks[] = { VARIABLE(A), MERGE(JOIN), IF(LEFT, JOIN), LABEL(LEFT), CALL(X, A), GO(JOIN), LABEL(JOIN),
                                I(OP_PHI, UINT, Y, ONE, START, X, LEFT), STORE(BUFFER, Y), RETURN,
                                FUNCTION, MERGE(LAST), IF(SECOND, LAST), LABEL(SECOND), GO(LAST), LABEL(LAST),
                                I(OP_PHI, UINT, Z, ONE, FIRST, TWO, SECOND), GIVE(Z) };
    const uint32_t blocks_left[] = { VARIABLE(A), MERGE(JOIN), IF(LEFT, JOIN), LABEL(LEFT), MERGE(LAST),
                                     IF(SECOND, LAST), LABEL(SECOND), GO(LAST), LABEL(LAST),
                                     I(OP_PHI, UINT, Z, ONE, LEFT, TWO, SECOND), GO(JOIN), LABEL(JOIN),
                                     I(OP_PHI, UINT, Y, ONE, START, Z, LAST), STORE(BUFFER, Y), RETURN };
    (void)state;
    EXPECT(simple, simple_left);
    EXPECT(blocks, blocks_left);
}

/* Called twice; returning on its way; with a variable that begins anew with each call; from a block that begins a loop. */
static void test_called_otherwise(void **state)
{
    const uint32_t twice[] = { CALL(X, IN), CALL(Y, IN), RETURN, FUNCTION, LOAD(Z, GIVEN), GIVE(Z) };
    const uint32_t on_its_way[] = { CALL(X, IN), RETURN, FUNCTION, MERGE(LAST), IF(SECOND, LAST), LABEL(SECOND),
                                    I(OP_RETURN_VALUE, ONE), LABEL(LAST), GIVE(TWO) };
    const uint32_t begun[] = { CALL(X, IN), RETURN, FUNCTION, I(OP_VARIABLE, POINTER, A, CLASS_FUNCTION, ONE), LOAD(Z, A),
                               GIVE(Z) };
    const uint32_t looped[] = { GO(HEAD), LABEL(HEAD), CALL(X, IN), TEST, AGAIN, FUNCTION, LOAD(Z, GIVEN), GIVE(Z) };
    (void)state;
    EXPECT_ALL(twice);
    EXPECT_ALL(on_its_way);
    EXPECT_ALL(begun);
    EXPECT_ALL(looped);
}

/* A number may be the id of a load that goes. */
static void test_numbers(void **state)
{
#define NUMBERS(x) \
    I(OP_EXT_INST, UINT, C, TWO, X, x), I(OP_EXTRACT, UINT, W, x, X), STORE(BUFFER, C), STORE(BUFFER, W), \
    I(OP_LOAD_TENSOR, UINT, Y, x, x, x, ALIGNED | MAKE_VISIBLE, X, ONE, X, x, x), \
    I(OP_STORE_TENSOR, x, Y, x, 0, X, x), \
    MERGE(JOIN), I(OP_SWITCH, x, JOIN, X, LEFT), LABEL(LEFT), GO(JOIN), LABEL(JOIN), RETURN
    const uint32_t body[] = { VARIABLE(A), STORE(A, ONE), LOAD(X, A), NUMBERS(X) }, want[] = { NUMBERS(ONE) };
    (void)state;
    EXPECT(body, want);
}

/* What is left stays declared, and what is said of it. Where a number is the id of something that went from a function,
 * as the two constants' values are here, nothing stays said of that. */
static void test_declarations(void **state)
{
    const uint32_t module[] = { ENTRY, I(OP_DECORATE, X, NO_CONTRACTION), I(OP_DECORATE, Y, NO_CONTRACTION),
                                I(OP_NAME, A, 'a'), DECLARATIONS, LABEL(START), VARIABLE(A), LOAD(X, IN),
                                STORE(A, X), ADD(Y, ONE, TWO), STORE(BUFFER, Y), RETURN };
    const uint32_t stays[][6] = { { I(OP_DECORATE, Y, NO_CONTRACTION) }, { I(OP_CONSTANT, UINT, TWO, X) },
                                  { I(OP_VARIABLE, BUFFER_POINTER, BUFFER, BUFFER_CLASS) },
                                  { I(OP_ENTRY_POINT, COMPUTE, MAIN, MAIN_TEXT, 0, BUFFER) } };
    const uint32_t goes[][4] = { { I(OP_DECORATE, X, NO_CONTRACTION) }, { I(OP_NAME, A, 'a') },
                                 { I(OP_TYPE_POINTER, POINTER, CLASS_FUNCTION, UINT) },
                                 { I(OP_VARIABLE, INPUT_POINTER, IN, CLASS_INPUT) }, { I(OP_TRUE, BOOL, TRUE) } };
    (void)state;
    strip_copy(module, COUNT(module));
    for (size_t i = 0; i < COUNT(stays); i++) assert_true(has(stays[i], stays[i][0] >> 16));
    for (size_t i = 0; i < COUNT(goes); i++) assert_false(has(goes[i], goes[i][0] >> 16));
    free(words);
}

/* Of constants that are made alike one stays, also where they are alike once their parts are one; not of those that are decorated,
 * or that a type of its own kind names. What is an array's length, a variable's value or a function's operand follows; a member's
 * number that is the id of one that goes does not. */
static void test_constants_alike(void **state)
{
    enum { SPEC_OP = 52, PAIR = 44, ARRAY = 28, MATRIX = 4456, MULTIPLY = 132, PRIVATE = 6 };
#define TIMES(id, a, b) I(SPEC_OP, UINT, id, MULTIPLY, a, b)
#define MEMBER(id, of, number) I(SPEC_OP, UINT, id, OP_EXTRACT, of, number)
    const uint32_t module[] = {
        ENTRY, I(OP_DECORATE, SECOND, NO_CONTRACTION), I(OP_NAME, B, 'b'), I(OP_INT, UINT, 32, 0), I(OP_CONSTANT, UINT, ONE, 1),
        I(OP_CONSTANT, UINT, TWO, 2), TIMES(A, ONE, TWO), TIMES(B, ONE, TWO), TIMES(C, TWO, ONE), I(PAIR, VOID, X, ONE, A),
        I(PAIR, VOID, Y, ONE, B), I(PAIR, VOID, Z, ONE, C), MEMBER(FIRST, X, B), MEMBER(LAST, Y, B), TIMES(SECOND, ONE, TWO),
        TIMES(HEAD, ONE, TWO), I(MATRIX, BODY, UINT, HEAD), I(ARRAY, LEFT, UINT, B), I(OP_VARIABLE, POINTER, IN, PRIVATE, LAST),
        I(OP_VARIABLE, POINTER, BUFFER, BUFFER_CLASS), I(OP_FUNCTION, VOID, MAIN, 0, FUNCTION_TYPE), LABEL(START),
        I(OP_STORE, BUFFER, B), I(OP_STORE, BUFFER, C), I(OP_STORE, BUFFER, Y), I(OP_STORE, BUFFER, Z), I(OP_STORE, BUFFER, SECOND),
        I(OP_STORE, IN, LEFT), RETURN };
    const uint32_t want[] = {
        ENTRY, I(OP_DECORATE, SECOND, NO_CONTRACTION), I(OP_INT, UINT, 32, 0), I(OP_CONSTANT, UINT, ONE, 1),
        I(OP_CONSTANT, UINT, TWO, 2), TIMES(A, ONE, TWO), TIMES(C, TWO, ONE), I(PAIR, VOID, X, ONE, A),
        I(PAIR, VOID, Z, ONE, C), MEMBER(FIRST, X, B), TIMES(SECOND, ONE, TWO),
        TIMES(HEAD, ONE, TWO), I(MATRIX, BODY, UINT, HEAD), I(ARRAY, LEFT, UINT, A), I(OP_VARIABLE, POINTER, IN, PRIVATE, FIRST),
        I(OP_VARIABLE, POINTER, BUFFER, BUFFER_CLASS), I(OP_FUNCTION, VOID, MAIN, 0, FUNCTION_TYPE), LABEL(START),
        I(OP_STORE, BUFFER, A), I(OP_STORE, BUFFER, C), I(OP_STORE, BUFFER, X), I(OP_STORE, BUFFER, Z), I(OP_STORE, BUFFER, SECOND),
        I(OP_STORE, IN, LEFT), RETURN };
    (void)state;
    lean = false;
    strip_copy(module, COUNT(module));
    lean = true;
    assert_int_equal(count, COUNT(want));
    assert_memory_equal(words, want, sizeof want);
    free(words);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stored_once), cmocka_unit_test(test_stored_before_branches),
        cmocka_unit_test(test_stored_in_a_branch), cmocka_unit_test(test_loops), cmocka_unit_test(test_unreached),
        cmocka_unit_test(test_more_is_done), cmocka_unit_test(test_unused), cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_declarations), cmocka_unit_test(test_constants_alike),
        cmocka_unit_test_setup_teardown(test_called_once, inline_alone, lean_alone),
        cmocka_unit_test_setup_teardown(test_called_otherwise, inline_alone, lean_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
