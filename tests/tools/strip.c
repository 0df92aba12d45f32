/* Makes a SPIR-V module smaller: less to embed, and less for a driver to read. What it computes stays.
 *
 *   strip [--inline] [--lean] IN.spv OUT.spv
 *
 * With --inline first, functions that are called from one place, and return at their end alone, take that place. NVIDIA's driver
 * (580.159) unrolls loops before it has done all of that, and what loops index that it then leaves as they are is kept in
 * memory: a step's attention of four rows to 8192 keys took an H200 18 us as one function, 56 to 72 as several.
 *
 * glslang gives every name in a function a variable, and every mention of it a load. With --lean first, until nothing changes:
 *   - A function's variable that is stored once, on every way to each of its loads, goes with that store and these
 *     loads: what was stored takes the loads' place. One that is never loaded goes with its stores.
 *   - Instructions without an effect go where nothing uses their result.
 * It declares a constant that is computed from others anew wherever a shader's text does: of those that are alike the first
 * stays. Then, of what glslang declares - every view of every buffer that a shader includes -, what no function needs goes:
 * types, constants, variables, also from the entry points' lists. Names and decorations go with what they are said of.
 *
 * Not all modules are lean: NVIDIA's driver (580.159) may make slower code of what is computed by fewer instructions. On an H100
 * the largest of columns of 2097152 x 128 took 546 us so, and 483 as glslang made it, 89478485 x 3 1,212 and 866, a prompt of
 * Qwen3-0.6B 4 % longer.
 *
 * Which words of an instruction are ids and which are numbers is known within functions, by the table of shapes. Of the
 * rest it is not looked at: a number that happens to be a declaration's id keeps that. */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEADER = 5, BOUND = 3, MAGIC = 0x07230203 };
enum { OP_NOP = 0, OP_NAME = 5, OP_MEMBER_NAME = 6, OP_ENTRY_POINT = 15, OP_TYPE_FIRST = 19, OP_TYPE_POINTER = 32,
       OP_TYPE_ARRAY = 28, OP_TYPE_LAST = 39, OP_CONSTANT_FIRST = 41, OP_CONSTANT_COMPOSITE = 44, OP_SPEC_CONSTANT_COMPOSITE = 51,
       OP_SPEC_CONSTANT_OP = 52, OP_CONSTANT_LAST = 52, OP_SHUFFLE = 79, OP_COMPOSITE_EXTRACT = 81, OP_COMPOSITE_INSERT = 82, OP_FUNCTION = 54, OP_PARAMETER = 55,
       OP_FUNCTION_END = 56, OP_CALL = 57,
       OP_VARIABLE = 59, OP_LOAD = 61, OP_STORE = 62, OP_DECORATE = 71, OP_MEMBER_DECORATE = 72, OP_PHI = 245, OP_LOOP_MERGE = 246, OP_LABEL = 248,
       OP_BRANCH = 249, OP_RETURN = 253,
       OP_RETURN_VALUE = 254, OP_SWITCH = 251, OP_UNREACHABLE = 255, OP_LOAD_TENSOR = 5367, OP_STORE_TENSOR = 5368,
       BUILT_IN = 11 };
enum { CLASS_INPUT = 1, CLASS_PRIVATE = 6, CLASS_FUNCTION = 7, CLASS_PUSH_CONSTANT = 9 };
enum { ALIGNED = 2, MAKE_AVAILABLE = 8, MAKE_VISIBLE = 16 };

/* The instructions of functions, by ranges of opcodes. result: the word that is its id, 0: it has none. numbers, until:
 * the words from the one up to the other are no ids; 0: there are none, or it is all up to the end. Scopes among the
 * operands of memory are ids, but they count as numbers, for they are constants, which nothing here replaces. pure: the
 * instruction has no effect but its result. An instruction that is not here stops the tool: it needs its row. */
static const struct shape { uint16_t first, last; uint8_t result, numbers, until; bool pure; } shapes[] = {
    { OP_NOP, OP_NOP, 0, 1, 0, false },
    { 1, 1, 2, 0, 0, true },                         /* OpUndef */
    { 12, 12, 2, 4, 5, false },                      /* OpExtInst: which of the set; some write through a pointer */
    { OP_FUNCTION, OP_FUNCTION, 2, 3, 4, false },    /* control */
    { OP_PARAMETER, OP_PARAMETER, 2, 0, 0, false },
    { OP_FUNCTION_END, OP_FUNCTION_END, 0, 0, 0, false },
    { OP_CALL, OP_CALL, 2, 0, 0, false },
    { OP_VARIABLE, OP_VARIABLE, 2, 3, 4, true },     /* storage class */
    { OP_LOAD, OP_LOAD, 2, 4, 0, true },             /* operands of memory; pure: see is_pure */
    { OP_STORE, OP_STORE, 0, 3, 0, false },          /* the same */
    { 65, 66, 2, 0, 0, true },                       /* OpAccessChain, OpInBoundsAccessChain */
    { 77, 78, 2, 0, 0, true },                       /* OpVectorExtractDynamic, OpVectorInsertDynamic */
    { 79, 79, 2, 5, 0, true },                       /* OpVectorShuffle: components */
    { 80, 80, 2, 0, 0, true },                       /* OpCompositeConstruct */
    { 81, 81, 2, 4, 0, true },                       /* OpCompositeExtract: members */
    { 82, 82, 2, 5, 0, true },                       /* OpCompositeInsert: members */
    { 83, 84, 2, 0, 0, true },                       /* OpCopyObject, OpTranspose */
    { 109, 116, 2, 0, 0, true },                     /* OpConvertFToU to OpQuantizeToF16: conversions */
    { 124, 124, 2, 0, 0, true },                     /* OpBitcast */
    { 126, 152, 2, 0, 0, true },                     /* OpSNegate to OpSMulExtended: arithmetic */
    { 154, 157, 2, 0, 0, true },                     /* OpAny, OpAll, OpIsNan, OpIsInf */
    { 164, 191, 2, 0, 0, true },                     /* OpLogicalEqual to OpFUnordGreaterThanEqual, with OpSelect */
    { 194, 205, 2, 0, 0, true },                     /* OpShiftRightLogical to OpBitCount: bits */
    { 224, 225, 0, 0, 0, false },                    /* OpControlBarrier, OpMemoryBarrier */
    { 227, 227, 2, 0, 0, false },                    /* OpAtomicLoad */
    { 228, 228, 0, 0, 0, false },                    /* OpAtomicStore */
    { 229, 242, 2, 0, 0, false },                    /* OpAtomicExchange to OpAtomicXor */
    { OP_PHI, OP_PHI, 2, 0, 0, true },
    { OP_LOOP_MERGE, OP_LOOP_MERGE, 0, 3, 0, false },       /* control */
    { 247, 247, 0, 2, 0, false },                    /* OpSelectionMerge: control */
    { OP_LABEL, OP_LABEL, 1, 0, 0, false },
    { OP_BRANCH, OP_BRANCH, 0, 0, 0, false },
    { 250, 250, 0, 4, 0, false },                    /* OpBranchConditional: weights */
    { OP_SWITCH, OP_SWITCH, 0, 3, 0, false },        /* each number is followed by a label: see is_operand */
    { 252, OP_UNREACHABLE, 0, 0, 0, false },         /* OpKill, OpReturn, OpReturnValue, OpUnreachable */
    { 333, 341, 2, 0, 0, false },                    /* OpGroupNonUniformElect to ...BallotBitExtract */
    { 342, 342, 2, 4, 5, false },                    /* OpGroupNonUniformBallotBitCount: reduce or scan */
    { 343, 348, 2, 0, 0, false },                    /* OpGroupNonUniformBallotFindLSB to ...ShuffleDown */
    { 349, 364, 2, 4, 5, false },                    /* OpGroupNonUniformIAdd to ...LogicalXor: the same */
    { 365, 366, 2, 0, 0, false },                    /* OpGroupNonUniformQuadBroadcast, ...QuadSwap */
    { 4450, 4452, 2, 5, 0, true },                   /* OpSDot, OpUDot, OpSUDot: format */
    { 4453, 4455, 2, 6, 0, true },                   /* the same and AccSat */
    { 4457, 4457, 2, 6, 0, false },                  /* OpCooperativeMatrixLoadKHR: operands of memory */
    { 4458, 4458, 0, 5, 0, false },                  /* OpCooperativeMatrixStoreKHR: the same */
    { 4459, 4459, 2, 6, 0, true },                   /* OpCooperativeMatrixMulAddKHR: signedness */
    { 4460, 4460, 2, 0, 0, true },                   /* OpCooperativeMatrixLengthKHR */
    { 5366, 5366, 2, 4, 5, false },                  /* OpCooperativeMatrixReduceNV: along what */
    { OP_LOAD_TENSOR, OP_LOAD_TENSOR, 2, 6, 0, false },     /* operands of memory, of tensors: see is_operand */
    { OP_STORE_TENSOR, OP_STORE_TENSOR, 0, 4, 0, false },   /* the same */
    { 5369, 5369, 2, 0, 0, false },                  /* OpCooperativeMatrixPerElementOpNV */
    { 5372, 5377, 2, 0, 0, true },                   /* OpCreateTensorLayoutNV to OpCreateTensorViewNV */
};

/* What is known of an id: where it is made, 0 where that is by a declaration that is no type, constant or variable; how
 * many words of functions name it, and how many of these are the pointer of a plain store or load; one such store. */
struct fact { uint32_t at, uses, stores, loads, store; };

static uint32_t *words, count, bound, code;          /* code: where the functions begin */
static struct fact *facts;
static uint32_t *block, *instead;                    /* the label that an instruction follows; what replaces an id */
static bool *used, *gone, *alive, *reached;          /* by id; of labels: those that anything reaches, see is_needed */
static const char *input = "module";

static _Noreturn void fail(const char *why)
{
    fprintf(stderr, "strip: %s: %s\n", input, why);
    exit(1);
}

static uint32_t op_at(uint32_t at) { return words[at] & 0xffff; }
static uint32_t length_at(uint32_t at) { return words[at] >> 16; }

static void read_module(void)
{
    FILE *f = fopen(input, "rb");
    long size;
    if (!f || fseek(f, 0, SEEK_END) || (size = ftell(f)) < 4 * HEADER || size % 4 || fseek(f, 0, SEEK_SET))
        fail("cannot be read");
    count = (uint32_t)size / 4;
    words = malloc((size_t)size);
    if (!words || fread(words, 4, count, f) != count) fail("cannot be read");
    fclose(f);
}

static void check_module(void)
{
    uint32_t last = OP_NOP;
    bound = words[BOUND];
    code = 0;
    if (words[0] != MAGIC || !bound || bound > 1 << 22) fail("no SPIR-V");
    for (uint32_t at = HEADER; at < count; at += length_at(at)) {
        if (!length_at(at) || length_at(at) > count - at) fail("an instruction does not end");
        last = op_at(at);
        if (!code && last == OP_FUNCTION) code = at;
    }
    if (last != OP_FUNCTION_END) fail("no function");
}

static void *zeros(size_t n, size_t size)
{
    void *p = calloc(n, size);
    if (!p) fail("no memory");
    return p;
}

/* Where a declaration that may go has its id; 0: it stays. */
static uint32_t id_at(uint32_t op)
{
    if (op >= OP_TYPE_FIRST && op <= OP_TYPE_LAST) return 1;
    return (op >= OP_CONSTANT_FIRST && op <= OP_CONSTANT_LAST) || op == OP_VARIABLE ? 2 : 0;
}

/* Names and decorations go with what they are said of. */
static bool is_said_of(uint32_t op)
{
    return op == OP_NAME || op == OP_MEMBER_NAME || op == OP_DECORATE || op == OP_MEMBER_DECORATE;
}

/* ---- within functions -------------------------------------------------------------------------------------------- */

static const struct shape *shape_at(uint32_t at)
{
    static const struct shape *of[1 << 16];
    uint32_t op = op_at(at);
    for (size_t i = 0; !of[op] && i < sizeof shapes / sizeof *shapes; i++)
        if (op >= shapes[i].first && op <= shapes[i].last) of[op] = &shapes[i];
    if (!of[op]) {
        char why[64];
        snprintf(why, sizeof why, "opcode %u needs its row in the table of shapes", op);
        fail(why);
    }
    return of[op];
}

static uint32_t result_at(uint32_t at) { return shape_at(at)->result ? words[at + shape_at(at)->result] : 0; }

/* Whether word i of an instruction is an id that it uses. */
static bool is_operand(uint32_t at, uint32_t i)
{
    const struct shape *s = shape_at(at);
    uint32_t op = op_at(at), until = s->until ? s->until : length_at(at);
    if (op == OP_SWITCH && i >= s->numbers) return i % 2 == 0;         /* GLSL's are of 32 bits: one word */
    if (op == OP_LOAD_TENSOR || op == OP_STORE_TENSOR) {
        uint32_t bits = words[at + s->numbers];                        /* each of these has a word behind it */
        until = s->numbers + 2 + !!(bits & ALIGNED) + !!(bits & MAKE_AVAILABLE) + !!(bits & MAKE_VISIBLE);
    }
    return i != s->result && !(s->numbers && i >= s->numbers && i < until);
}

static bool is_plain_load(uint32_t at) { return op_at(at) == OP_LOAD && length_at(at) == 4; }
static bool is_plain_store(uint32_t at) { return op_at(at) == OP_STORE && length_at(at) == 3; }

/* Marks in seen the blocks that are reached from one of them other than through another, which may be 0. */
static void reach(uint32_t label, uint32_t without, bool *seen)
{
    uint32_t at = facts[label].at;
    if (label == without || seen[label]) return;
    seen[label] = true;
    while (op_at(at) < OP_BRANCH || op_at(at) > OP_UNREACHABLE) at += length_at(at);
    for (uint32_t i = 1; i < length_at(at); i++)
        if (is_operand(at, i) && op_at(facts[words[at + i]].at) == OP_LABEL) reach(words[at + i], without, seen);
}

/* What an instruction of a function says of the ids that it names. */
static void note(uint32_t at)
{
    uint32_t result = result_at(at);
    if (result >= bound) fail("an id is out of bounds");
    if (result) facts[result].at = at;
    for (uint32_t i = 1; i < length_at(at); i++) {
        struct fact *f;
        if (!is_operand(at, i)) continue;
        if (words[at + i] >= bound) fail("an id is out of bounds");
        f = facts + words[at + i];
        f->uses++;
        if (is_plain_load(at) && i == 3) f->loads++;
        if (!is_plain_store(at) || i != 1) continue;
        f->stores++;
        f->store = at;
    }
}

/* Finds all facts, the block of each instruction, and which blocks are reached at all. */
static void look(void)
{
    uint32_t label = 0;
    memset(facts, 0, bound * sizeof *facts);
    memset(alive, 0, bound);
    for (uint32_t at = HEADER; at < code; at += length_at(at)) {
        uint32_t id = id_at(op_at(at));
        if (id) facts[words[at + id]].at = at;
    }
    for (uint32_t at = code; at < count; at += length_at(at)) {
        note(at);
        if (op_at(at) == OP_LABEL) label = result_at(at);
        block[at] = label;
    }
    for (uint32_t at = code, entry = 0; at < count; at += length_at(at)) {
        if (op_at(at) == OP_FUNCTION) entry = 0;
        if (op_at(at) != OP_LABEL || entry) continue;
        entry = result_at(at);
        reach(entry, 0, alive);
    }
}

static void drop(uint32_t at)
{
    gone[result_at(at)] = true;
    words[at] &= ~0xffffu;                           /* OpNop, as long as it was */
}

/* Whether a store is on every way to a load. Every store is on all ways to where no way leads: not there. */
static bool comes_before(uint32_t store, uint32_t load)
{
    if (!alive[block[store]] || !alive[block[load]]) return false;
    return block[store] == block[load] ? store < load : !reached[block[load]];
}

/* Whether more is done with a variable, made at that place, than to store it once and then to load it, or to store it.
 * Where a store is on every way to a load, there is no way from where the value was made to the load but through the
 * store, in loops neither: it is the value that the load finds. */
static bool is_needed(uint32_t at)
{
    uint32_t id = result_at(at);
    const struct fact *f = facts + id;
    bool needed = false;
    if (f->uses != f->stores + f->loads || (f->stores != 1 && f->loads)) return true;
    if (!f->loads) return false;
    memset(reached, 0, bound);
    reach(block[at], block[f->store], reached);      /* variables are in their function's first block */
    for (uint32_t i = at; op_at(i) != OP_FUNCTION_END && !needed; i += length_at(i))
        needed = is_plain_load(i) && words[i + 3] == id && !comes_before(f->store, i);
    return needed;
}

/* Takes a variable out that is not needed, with its stores and loads. */
static void take_out(uint32_t at)
{
    uint32_t id = result_at(at), store = facts[id].store;
    for (uint32_t i = at; op_at(i) != OP_FUNCTION_END; i += length_at(i)) {
        bool load = is_plain_load(i) && words[i + 3] == id;
        if (load) instead[result_at(i)] = words[store + 2];
        if (load || (is_plain_store(i) && words[i + 1] == id)) drop(i);
    }
    drop(at);
}

/* Puts what is to be there instead of ids that are gone in their places. */
static void replace(void)
{
    for (uint32_t at = code; at < count; at += length_at(at))
        for (uint32_t i = 1; i < length_at(at); i++)
            while (is_operand(at, i) && instead[words[at + i]]) words[at + i] = instead[words[at + i]];
}

/* Takes all variables out that are not needed; were there any? What was stored may itself come from such a load. */
static bool take_variables_out(void)
{
    bool any = false;
    look();
    for (uint32_t at = code; at < count; at += length_at(at)) {
        if (op_at(at) != OP_VARIABLE || is_needed(at)) continue;
        take_out(at);
        any = true;
    }
    if (any) replace();
    return any;
}

/* A load is where nobody else writes: that of a buffer may be volatile. */
static bool is_pure(uint32_t at)
{
    uint32_t pointer, type, class;
    if (op_at(at) != OP_LOAD) return shape_at(at)->pure;
    pointer = facts[words[at + 3]].at;
    type = pointer ? facts[words[pointer + 1]].at : 0;
    class = type && op_at(type) == OP_TYPE_POINTER ? words[type + 2] : 0;
    return is_plain_load(at) && (class == CLASS_FUNCTION || class == CLASS_PRIVATE || class == CLASS_INPUT ||
                                 class == CLASS_PUSH_CONSTANT);
}

/* Takes instructions out whose results are not used; were there any? */
static bool take_unused_out(void)
{
    bool any = false;
    look();
    for (uint32_t at = code; at < count; at += length_at(at)) {
        if (!is_pure(at) || facts[result_at(at)].uses) continue;
        drop(at);
        any = true;
    }
    return any;
}

/* ---- functions called once --------------------------------------------------------------------------------------- */

static uint32_t first_label(uint32_t function)
{
    while (op_at(function) != OP_LABEL) function += length_at(function);
    return function;
}

/* The return of a function that may take its call's place, 0 of one that may not: it returns elsewhere too, or has a variable
 * with a value from the start, which each call would set. */
static uint32_t return_of(uint32_t function)
{
    uint32_t last = 0, returns = 0;
    for (uint32_t at = function; op_at(at) != OP_FUNCTION_END; at += length_at(at)) {
        last = at;
        returns += op_at(at) == OP_RETURN || op_at(at) == OP_RETURN_VALUE;
        if (op_at(at) == OP_VARIABLE && length_at(at) > 4) return 0;
    }
    return returns == 1 && (op_at(last) == OP_RETURN || op_at(last) == OP_RETURN_VALUE) ? last : 0;
}

/* Whether the rest of a block may be another block's: not where the block says first that it begins a loop. */
static bool may_be_parted(uint32_t at)
{
    while (op_at(at) < OP_LOOP_MERGE || op_at(at) > OP_UNREACHABLE) at += length_at(at);
    return op_at(at) != OP_LOOP_MERGE;
}

/* Says what the ids of a function become in the place of its call. Those who come from the call's block come from the
 * function's last one then. */
static void rename_in_place(uint32_t caller, uint32_t call, uint32_t function, uint32_t end)
{
    uint32_t argument = call + 4, label = first_label(function), first = result_at(label), from = block[call];
    uint32_t last = block[end];
    for (uint32_t at = function + length_at(function); at < label; at += length_at(at)) {
        if (op_at(at) != OP_PARAMETER) continue;
        instead[result_at(at)] = words[argument++];
        gone[result_at(at)] = true;
    }
    for (uint32_t at = caller; last != first && op_at(at) != OP_FUNCTION_END; at += length_at(at))
        for (uint32_t i = 4; op_at(at) == OP_PHI && i < length_at(at); i += 2)
            if (words[at + i] == from) words[at + i] = last;
    instead[first] = from;
    gone[first] = gone[result_at(function)] = gone[result_at(call)] = true;
    if (op_at(end) == OP_RETURN_VALUE) instead[result_at(call)] = words[end + 1];
}

static uint32_t append(uint32_t *to, uint32_t n, uint32_t at)
{
    memcpy(to + n, words + at, length_at(at) * sizeof *to);
    return n + length_at(at);
}

/* Of what is between a function's first label and its return: the variables, or all else. */
static uint32_t append_part(uint32_t *to, uint32_t n, uint32_t function, uint32_t end, bool variables)
{
    for (uint32_t at = first_label(function) + 2; at < end; at += length_at(at))
        if ((op_at(at) == OP_VARIABLE) == variables) n = append(to, n, at);
    return n;
}

/* Puts a function in the place of its one call: its variables go to the caller's first block. */
static void put_in_place(uint32_t caller, uint32_t call, uint32_t end)
{
    uint32_t function = facts[words[call + 3]].at, *all = zeros(count, sizeof *all), n = code, first = first_label(caller);
    rename_in_place(caller, call, function, end);
    memcpy(all, words, code * sizeof *all);
    for (uint32_t at = code; at < count; at += length_at(at)) {
        if (at >= function && at <= end + length_at(end)) continue;         /* and its OpFunctionEnd */
        n = at == call ? append_part(all, n, function, end, false) : append(all, n, at);
        if (at == first) n = append_part(all, n, function, end, true);
    }
    free(words);
    words = all;
    count = n;
    replace();
}

/* Puts one such function in its place; was there any? */
static bool put_one_in_place(void)
{
    uint32_t caller = 0;
    look();
    for (uint32_t at = code; at < count; at += length_at(at)) {
        uint32_t function = op_at(at) == OP_CALL ? facts[words[at + 3]].at : 0, end;
        if (op_at(at) == OP_FUNCTION) caller = at;
        if (!function || function == caller || facts[words[at + 3]].uses != 1) continue;
        if (!(end = return_of(function)) || !may_be_parted(at)) continue;
        put_in_place(caller, at, end);
        return true;
    }
    return false;
}

/* ---- constants alike --------------------------------------------------------------------------------------------- */

/* A constant that is made of others, which have an id each. */
static bool is_made(uint32_t op)
{
    return op == OP_CONSTANT_COMPOSITE || op == OP_SPEC_CONSTANT_COMPOSITE || op == OP_SPEC_CONSTANT_OP;
}

/* Whether word i of such a constant, of an array's type or of a variable is the id of a constant. */
static bool is_part(uint32_t at, uint32_t i)
{
    uint32_t op = op_at(at), of = op == OP_SPEC_CONSTANT_OP ? words[at + 3] : 0;
    if (op == OP_TYPE_ARRAY) return i == 3;
    if (op == OP_VARIABLE) return i == 4;
    if (of == OP_COMPOSITE_EXTRACT) return i == 4;
    if (of == OP_COMPOSITE_INSERT || of == OP_SHUFFLE) return i == 4 || i == 5;
    return is_made(op) && i > (of ? 3 : 2);
}

/* Marks what is decorated, and what is named by a declaration of which it is not known where its ids are: of a cooperative
 * matrix's type there may be no second one like it. */
static void mark_apart(bool *apart)
{
    for (uint32_t at = HEADER; at < code; at += length_at(at)) {
        uint32_t op = op_at(at), last = op == OP_DECORATE ? 1 : id_at(op) || is_said_of(op) ? 0 : length_at(at) - 1;
        for (uint32_t i = 1; i <= last; i++) if (words[at + i] < bound) apart[words[at + i]] = true;
    }
}

/* Where the first constant like the one at that place is; that place where there is none. */
static uint32_t first_like(uint32_t at, const bool *apart)
{
    uint32_t n = length_at(at);
    for (uint32_t i = HEADER; i < at; i += length_at(i))
        if (words[i] == words[at] && words[i + 1] == words[at + 1] && !apart[words[i + 2]] &&
            !memcmp(words + i + 3, words + at + 3, (n - 3) * sizeof *words)) return i;
    return at;
}

static void join_constants(void)
{
    bool *apart = zeros(bound, 1);
    mark_apart(apart);
    for (uint32_t at = HEADER, first; at < code; at += length_at(at)) {
        for (uint32_t i = 1; i < length_at(at); i++)
            if (is_part(at, i) && instead[words[at + i]]) words[at + i] = instead[words[at + i]];
        if (!is_made(op_at(at)) || apart[words[at + 2]] || (first = first_like(at, apart)) == at) continue;
        instead[words[at + 2]] = words[first + 2];
        gone[words[at + 2]] = true;
        words[at] &= ~0xffffu;                       /* OpNop, as long as it was */
    }
    free(apart);
    replace();
}

/* ---- declarations ----------------------------------------------------------------------------------------------- */

/* Marks what an instruction names; was any of it new? */
static bool use_all(uint32_t at)
{
    bool news = false;
    for (uint32_t i = 1; i < length_at(at); i++) {
        uint32_t id = words[at + i];
        news = news || (id < bound && !used[id]);
        if (id < bound) used[id] = true;
    }
    return news;
}

/* The first word behind an entry point's name, where the list of its variables begins. */
static uint32_t list_of(uint32_t at)
{
    uint32_t i = 3;
    while (i + 1 < length_at(at) && words[at + i] >> 24) i++;
    return i + 1;
}

static bool is_there(uint32_t id) { return used[id] && !gone[id]; }

/* A constant of the kind is the workgroup's size, which counts where no function asks for it. */
static bool is_built_in(uint32_t at) { return op_at(at) == OP_DECORATE && words[at + 2] == BUILT_IN; }

/* Marks what functions and the module's head use, and what that needs in turn. */
static void mark(void)
{
    bool more = true;
    while (more) {
        bool inside = false;
        more = false;
        for (uint32_t at = HEADER; at < count; at += length_at(at)) {
            uint32_t op = op_at(at), id = id_at(op);
            inside = inside || op == OP_FUNCTION;
            if (op == OP_NOP) continue;
            if (is_built_in(at)) used[words[at + 1]] = true;
            if (!inside && (is_said_of(op) || (id && !used[words[at + id]]))) continue;
            if (op == OP_ENTRY_POINT) used[words[at + 2]] = true;
            else more = use_all(at) || more;
        }
    }
}

/* Closes up what is left. */
static void close_up(void)
{
    uint32_t to = HEADER;
    for (uint32_t at = HEADER, n; at < count; at += n) {
        uint32_t op = op_at(at), id = is_said_of(op) ? 1 : at < code ? id_at(op) : 0, kept = n = length_at(at);
        if (op == OP_NOP || (id && !is_there(words[at + id]))) continue;
        if (op == OP_ENTRY_POINT) {
            kept = list_of(at);
            for (uint32_t i = kept; i < n; i++) if (used[words[at + i]]) words[at + kept++] = words[at + i];
        }
        memmove(words + to, words + at, kept * sizeof *words);
        words[to] = kept << 16 | op;
        to += kept;
    }
    count = to;
}

static void strip(bool together, bool lean)
{
    check_module();
    facts = zeros(bound, sizeof *facts);
    instead = zeros(bound, sizeof *instead);
    block = zeros(count, sizeof *block);
    used = zeros(bound, 1);
    gone = zeros(bound, 1);
    alive = zeros(bound, 1);
    reached = zeros(bound, 1);
    join_constants();
    while (together && put_one_in_place()) {}
    while (lean && (take_variables_out() || take_unused_out())) {}
    mark();
    close_up();
    free(facts);
    free(instead);
    free(block);
    free(used);
    free(gone);
    free(alive);
    free(reached);
}

int main(int argc, char **argv)
{
    bool together = argc > 1 && !strcmp(argv[1], "--inline");
    bool lean = argc > 1 + together && !strcmp(argv[1 + together], "--lean");
    int options = together + lean;
    FILE *f;
    if (argc != 3 + options) {
        fprintf(stderr, "usage: strip [--inline] [--lean] IN.spv OUT.spv\n");
        return 2;
    }
    input = argv[1 + options];
    read_module();
    strip(together, lean);
    f = fopen(argv[2 + options], "wb");
    if (!f || fwrite(words, 4, count, f) != count || fclose(f)) fail("what is left cannot be written");
    free(words);
    return 0;
}
